"""Gemma 3n's layer and the ends of its model: several streams of hidden states, of which attention sees the first.

Source: transformers 5.23 models/gemma3n/modeling_gemma3n.py (Gemma3nTextAltUp, Gemma3nTextLaurelBlock,
Gemma3nTextMLP._gaussian_topk, Gemma3nTextDecoderLayer.forward, Gemma3nTextModel.forward).
"""

from __future__ import annotations

from memcheck.autograd.attention import batched
from memcheck.autograd.context import Context, adapts
from memcheck.autograd.elementwise import (
    add,
    add_in_place,
    cast,
    cat,
    clamp,
    copy,
    divide_rows,
    mean_rows,
    mul,
    power,
    scale,
    subtract,
    unary,
)
from memcheck.autograd.indexing import slices
from memcheck.autograd.matrix import Weights, linear, product
from memcheck.autograd.modules import normalise
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.frameworks.transformers.attention import attention
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.per_layer import per_layer_part
from memcheck.models.types import Attention, Block, Mlp, Norm, ParameterTensor, UnscaledAltUpBlock

NORM = "rmsnorm-fp32-weight"
Router = tuple[Parameter, Weights]
Tensors = dict[str, ParameterTensor]


def altup_block(ctx: Context, block: Block, x: Value) -> Value:
    """Predict all streams, run the layer on the first, correct all of them by what it made of that.

    Every intermediate result has a variable of the layer's forward.
    """
    tape, streams = ctx.tape, ctx.setting.streams
    if not isinstance(block.mixer, Attention) or not isinstance(block.mlp, Mlp):
        return x
    tensors = {t.name.removesuffix(".weight"): t for t in block.extra_tensors}
    norm, scores = tensors["altup.router_norm"], tensors["altup.modality_router"]
    router = ctx.parameter(norm.name, norm.shape), ctx.replicated(scores)  # which both halves of AltUp read
    predictions = _predict(ctx, tensors, router, x, streams)
    active = _first(ctx, predictions)
    normed = normalise(ctx, block.input_norm, active)
    laurel = _laurel(ctx, tensors, normed)
    attn = attention(ctx, block.mixer, normed, x.dtype)
    ctx.named = []
    attn = normalise(ctx, block.mixer_output_norm, attn)
    gated = add(tape, active, attn, "attention + active prediction")
    joined = scale(tape, add(tape, gated, laurel, "attention + laurel"), "half")
    attn_norm = normalise(ctx, block.mlp_norm, joined)
    forward = mlp(ctx, block.mlp, attn_norm)
    forward_norm = normalise(ctx, block.mlp_output_norm, forward)
    activated = add(tape, joined, forward_norm, "residual")
    corrected = _correct(ctx, tensors, router, predictions, activated, streams)
    first = copy(tape, _first(ctx, corrected), "clone")
    if not isinstance(block, UnscaledAltUpBlock):
        weight = ctx.parameter("altup.correct_output_scale", tensors["altup.correct_output_scale"].shape)
        narrow = mul(tape, cast(tape, first, weight.dtype), tape.parameter(weight))  # `type_as(correct_output_scale)`
        first = cast(tape, narrow, corrected.dtype)
        del narrow
    else:
        ctx.constant(tensors["altup.correct_output_scale"])
    first = per_layer_part(ctx, block, first)
    corrected = _add_to_others(ctx, corrected, first, streams)
    del predictions, active, normed, laurel, attn, gated, joined, attn_norm, forward, forward_norm, activated, first
    return corrected


def _first(ctx: Context, streams: Value) -> Value:
    """``streams[0]``: a view, whose gradient is written into zeros of all streams' size."""
    return slices(ctx.tape, streams, (ctx.tokens, streams.shape[-1]))[0]


def _modalities(ctx: Context, router: Router, x: Value) -> Value:
    """One number of each token and stream: a normed router's tanh in fp32, cast back."""
    tape = ctx.tape
    routed = rms_norm_pieces(tape, x, router[0], weight_in_fp32=True)
    routed = scale(tape, routed, "router input scale")
    routed = linear(tape, routed, router[1], "altup.modality_router")
    return cast(tape, unary(tape, cast(tape, routed, "fp32"), "tanh"), x.dtype)


def _predict(ctx: Context, tensors: Tensors, router: Router, x: Value, streams: int) -> Value:
    """All streams mixed token by token: a batched product of [hidden, streams] with [streams, streams], plus x."""
    tape, rows, hidden = ctx.tape, ctx.tokens, x.shape[-1]
    modalities = _modalities(ctx, router, _first(ctx, x))
    tensor = tensors["altup.prediction_coefs"]
    coefficients = linear(tape, modalities, ctx.replicated(tensor), tensor.name).view(rows, streams, streams)
    mixed = batched(tape, x.view(rows, hidden, streams), coefficients, (rows, hidden, streams), "predictions")
    mixed = (
        add_in_place(tape, mixed, x.view(*mixed.shape))
        if mixed.dtype == x.dtype
        else add(tape, mixed, x.view(*mixed.shape))
    )
    out = cast(tape, copy(tape, mixed, "contiguous"), x.dtype)
    del mixed, modalities, coefficients
    return out.view(*x.shape)


def _laurel(ctx: Context, tensors: Tensors, x: Value) -> Value:
    """``x + norm(right(left(x)))``."""
    tape = ctx.tape
    h = linear(tape, x, ctx.replicated(tensors["laurel.linear_left"]), "laurel.linear_left")
    h = linear(tape, h, ctx.replicated(tensors["laurel.linear_right"]), "laurel.linear_right")
    name = "laurel.post_laurel_norm"
    normed = normalise(ctx, Norm(NORM, x.shape[-1], name=name), h, name)
    return add(tape, x, normed, "laurel")


def _correct(
    ctx: Context, tensors: Tensors, router: Router, predictions: Value, activated: Value, streams: int
) -> Value:
    """``predictions + innovation * coefficients``: what the layer changed, once for each stream."""
    tape = ctx.tape
    modalities = _modalities(ctx, router, activated)
    innovation = subtract(tape, activated, _first(ctx, predictions))
    innovation = _repeat(tape, innovation, streams)
    tensor = tensors["altup.correction_coefs"]
    weights = ctx.replicated(tensor)  # clamped, and multiplied by hand: an adapter is passed over
    clamped = clamp(tape, tape.parameter(weights.weight), 2)
    coefficients = product(tape, modalities, clamped, tensor.name)
    coefficients = _shifted(tape, coefficients)
    corrected = mul(tape, innovation, coefficients.view(streams * ctx.tokens, 1))
    del innovation, coefficients, modalities
    return add_in_place(tape, corrected, predictions)


def _shifted(tape: Tape, x: Value) -> Value:
    """``x + 1.0``."""
    return operator(tape, tape.value(x.shape, x.dtype, "add"), x, PASSED)


def _repeat(tape: Tape, x: Value, streams: int) -> Value:
    return operator(tape, tape.value((streams * x.shape[0], *x.shape[1:]), x.dtype, "repeat"), x, "repeat backward")


def _add_to_others(ctx: Context, corrected: Value, first: Value, streams: int) -> Value:
    """``corrected[1:] += first``: an addition in place, and an assignment of the slice to itself (CopySlices both)."""
    tape, dtype = ctx.tape, corrected.dtype
    whole, small = corrected.shape, first.shape
    rest = ((streams - 1) * small[0], *small[1:])

    def added(grad: Storage) -> list[Storage | None]:
        result = tape.new(whole, dtype, "CopySlices")
        part = tape.new(rest, dtype, "CopySlices")
        total = tape.new(small, dtype, "sum")
        del part
        return [result, total]

    summed = tape.record(Value(corrected.storage, whole, dtype), (corrected, first), added)
    part = slices(tape, summed, rest)[0]

    out = Value(corrected.storage, whole, dtype)
    return operator(tape, out, (summed, part), "CopySlices", later=[(rest, dtype, "zeros")])


def spread_streams(ctx: Context, x: Value, streams: int) -> Value:
    """The embedding's rows and ``streams - 1`` projections of them, each as long as they are, stacked.

    The list of all is a variable until the last layer is done.
    """
    parts = [x]
    target = _magnitude(ctx, x)
    for i in range(streams - 1):
        weights = _square(ctx, f"altup_projections.{i}", x.shape[-1])
        parts.append(_resized(ctx, linear(ctx.tape, x, weights, "altup projection"), target))
    ctx.kept += parts[1:]
    return cat(ctx.tape, tuple(parts), (streams * x.shape[0], x.shape[-1]), "stack streams")


def join_streams(ctx: Context, x: Value, streams: int) -> Value:
    """The mean of all streams, each projected and as long as the first: what the final norm reads."""
    tape, shape = ctx.tape, (x.shape[0] // streams, x.shape[-1])
    parts = [slices(tape, x, shape)[0]]
    target = _magnitude(ctx, slices(tape, x, shape)[0])
    for i in range(streams - 1):
        weights = _square(ctx, f"altup_unembed_projections.{i}", shape[-1])
        made = linear(tape, slices(tape, x, shape)[0], weights, "altup unembed projection")
        parts.append(_resized(ctx, made, target))
    whole = cat(tape, tuple(parts), x.shape, "stack streams")
    return operator(tape, tape.value(shape, whole.dtype, "mean of streams"), whole, "mean backward")


def _square(ctx: Context, name: str, width: int) -> Weights:
    """A matrix outside the layers, which peft adapts as it adapts theirs."""
    plain, adapter = Weights(ctx.parameter(name, (width, width))), ctx.setting.adapter
    return plain if adapter is None or not adapts(adapter, name) else ctx.adapted(name, plain, adapter)


def _magnitude(ctx: Context, x: Value) -> Value:
    """``mean(x ** 2) ** 0.5`` of each row."""
    tape = ctx.tape
    wide = cast(tape, x, "fp32") if tape.autocast else x  # pow is on autocast's fp32 list
    return power(tape, mean_rows(tape, power(tape, wide)))


def _resized(ctx: Context, x: Value, target: Value) -> Value:
    """``x * target / sqrt(mean(x ** 2))``."""
    tape = ctx.tape
    x = cast(tape, x, ctx.setting.params)
    wide = cast(tape, x, "fp32") if tape.autocast else x
    own = unary(tape, clamp(tape, mean_rows(tape, power(tape, wide)), 1), "sqrt")
    return divide_rows(tape, mul(tape, x, target), own)
