"""Gemma 3n's layer and the ends of its model: several streams of hidden states, of which attention sees the first.

Source: transformers 5.23 models/gemma3n/modeling_gemma3n.py (Gemma3nTextAltUp, Gemma3nTextLaurelBlock,
Gemma3nTextMLP._gaussian_topk, Gemma3nTextDecoderLayer.forward, Gemma3nTextModel.forward).
"""

from __future__ import annotations

from memcheck.autograd.context import Context, adapts
from memcheck.autograd.kernels import Weights, batched, linear, product
from memcheck.autograd.modules import normalise, rms_norm_pieces
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    add,
    add_in_place,
    cast,
    cat,
    clamp,
    copy,
    divide_rows,
    mean_rows,
    mul,
    operator,
    power,
    scale,
    slices,
    subtract,
    unary,
)
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.frameworks.transformers.attention import attention
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.per_layer import per_layer_part
from memcheck.models.types import Attention, Block, Mlp, Norm, ParameterTensor, UnscaledAltUpBlock

NORM = "rmsnorm-fp32-weight"
Router = tuple[Parameter, Weights]
Tensors = dict[str, ParameterTensor]


def altup_block(ctx: Context, block: Block, x: Value) -> Value:
    """Run Gemma 3n's decoder layer on all AltUp streams, [streams * tokens, hidden].

    It predicts all streams, runs the layer on the first, and corrects all of them by its output. Every intermediate
    result is a variable of the layer's forward. Source: modeling_gemma3n.py, Gemma3nTextDecoderLayer.forward.
    """
    tape, streams = ctx.tape, ctx.setting.streams
    if not isinstance(block.mixer, Attention) or not isinstance(block.mlp, Mlp):
        return x
    tensors = {t.name.removesuffix(".weight"): t for t in block.extra_tensors}
    norm, scores = tensors["altup.router_norm"], tensors["altup.modality_router"]
    router = ctx.parameter(norm.name, norm.shape), ctx.replicated(scores)  # which both halves of AltUp read
    predictions = _predict(ctx, tensors, router, x, streams)
    active = _first_stream(ctx, predictions)
    normed = normalise(ctx, block.input_norm, active)
    laurel = _laurel(ctx, tensors, normed)
    attn = attention(ctx, block.mixer, normed, x.dtype)
    ctx.attention_locals = []
    attn = normalise(ctx, block.mixer_output_norm, attn)
    attention_residual = add(tape, active, attn, "attention + active prediction")
    attention_laurel = scale(tape, add(tape, attention_residual, laurel, "attention + laurel"), "half")
    attn_norm = normalise(ctx, block.mlp_norm, attention_laurel)
    mlp_output = mlp(ctx, block.mlp, attn_norm)
    normed_mlp_output = normalise(ctx, block.mlp_output_norm, mlp_output)
    activated = add(tape, attention_laurel, normed_mlp_output, "residual")
    corrected = _correct(ctx, tensors, router, predictions, activated, streams)
    first_stream = copy(tape, _first_stream(ctx, corrected), "clone")
    scale_tensor = tensors["altup.correct_output_scale"]
    if isinstance(block, UnscaledAltUpBlock):
        ctx.constant(scale_tensor)
    else:
        first_stream = _scaled_output(ctx, scale_tensor, first_stream, corrected.dtype)
    first_stream = per_layer_part(ctx, block, first_stream)
    return _add_to_others(ctx, corrected, first_stream, streams)


def _scaled_output(ctx: Context, tensor: ParameterTensor, x: Value, dtype: str) -> Value:
    """Multiply a stream by the learned vector ``tensor`` in the vector's dtype, and cast the product to ``dtype``."""
    tape, weight = ctx.tape, ctx.parameter(tensor.name, tensor.shape)
    scaled = mul(tape, cast(tape, x, weight.dtype), tape.parameter(weight))
    return cast(tape, scaled, dtype)


def _first_stream(ctx: Context, streams: Value) -> Value:
    """View the first stream, ``streams[0]``: [tokens, hidden]. Its gradient is written into zeros of all streams."""
    return slices(ctx.tape, streams, (ctx.tokens, streams.shape[-1]))[0]


def _modalities(ctx: Context, router: Router, x: Value) -> Value:
    """Compute the router's modality scores, [tokens, streams]: a norm, a linear layer, tanh in fp32, cast back."""
    tape = ctx.tape
    routed = rms_norm_pieces(tape, x, router[0], weight_in_fp32=True)
    routed = scale(tape, routed, "router input scale")
    routed = linear(tape, routed, router[1], "altup.modality_router")
    return cast(tape, unary(tape, cast(tape, routed, "fp32"), "tanh"), x.dtype)


def _predict(ctx: Context, tensors: Tensors, router: Router, x: Value, streams: int) -> Value:
    """Predict AltUp's streams from each other: ``x`` plus its product with a [streams, streams] matrix for each token.

    ``x``: [streams * tokens, hidden]; so is what is returned. ``router``: computes the matrices' inputs from the first
    stream. Source: modeling_gemma3n.py, Gemma3nTextAltUp.predict.
    """
    tape, tokens, hidden = ctx.tape, ctx.tokens, x.shape[-1]
    modalities = _modalities(ctx, router, _first_stream(ctx, x))
    tensor = tensors["altup.prediction_coefs"]
    coefficients = linear(tape, modalities, ctx.replicated(tensor), tensor.name).view(tokens, streams, streams)
    mixed = batched(tape, x.view(tokens, hidden, streams), coefficients, (tokens, hidden, streams), "predictions")
    adds = add_in_place if mixed.dtype == x.dtype else add  # `predictions += hidden_states` promotes under autocast
    mixed = adds(tape, mixed, x.view(*mixed.shape))
    out = cast(tape, copy(tape, mixed, "contiguous"), x.dtype)
    del mixed, modalities, coefficients
    return out.view(*x.shape)


def _laurel(ctx: Context, tensors: Tensors, x: Value) -> Value:
    """Run the low-rank residual branch (Gemma3nTextLaurelBlock): ``x + norm(right(left(x)))``."""
    tape = ctx.tape
    hidden_states = linear(tape, x, ctx.replicated(tensors["laurel.linear_left"]), "laurel.linear_left")
    hidden_states = linear(tape, hidden_states, ctx.replicated(tensors["laurel.linear_right"]), "laurel.linear_right")
    name = "laurel.post_laurel_norm"
    normed = normalise(ctx, Norm(NORM, x.shape[-1], name=name), hidden_states, name)
    return add(tape, x, normed, "laurel")


def _correct(
    ctx: Context, tensors: Tensors, router: Router, predictions: Value, activated: Value, streams: int
) -> Value:
    """Correct AltUp's streams by the layer's output: ``predictions + (activated - first stream) * coefficients``.

    ``predictions``: [streams * tokens, hidden]; so is what is returned. ``activated``: the layer's output, [tokens,
    hidden]. Source: modeling_gemma3n.py, Gemma3nTextAltUp.correct.
    """
    tape = ctx.tape
    modalities = _modalities(ctx, router, activated)
    innovation = subtract(tape, activated, _first_stream(ctx, predictions))
    innovation = _repeat(tape, innovation, streams)
    tensor = tensors["altup.correction_coefs"]
    weights = ctx.replicated(tensor)  # the code multiplies by the clamped weight, so that an adapter has no effect
    clamped = clamp(tape, tape.parameter(weights.weight), 2)
    coefficients = product(tape, modalities, clamped, tensor.name)
    coefficients = _add_one(tape, coefficients)
    corrected = mul(tape, innovation, coefficients.view(streams * ctx.tokens, 1))
    del innovation, coefficients, modalities
    return add_in_place(tape, corrected, predictions)


def _add_one(tape: Tape, x: Value) -> Value:
    """Compute ``x + 1.0``."""
    return operator(tape, tape.value(x.shape, x.dtype, "add"), x, GRAD_UNCHANGED)


def _repeat(tape: Tape, x: Value, streams: int) -> Value:
    return operator(tape, tape.value((streams * x.shape[0], *x.shape[1:]), x.dtype, "repeat"), x, "repeat backward")


def _add_to_others(ctx: Context, corrected: Value, first: Value, streams: int) -> Value:
    """Run ``corrected[1:] += first``: an addition in place, then an assignment of the slice to itself (CopySlices
    both).
    """
    tape, dtype = ctx.tape, corrected.dtype
    all_shape, first_shape = corrected.shape, first.shape
    others_shape = ((streams - 1) * first_shape[0], *first_shape[1:])

    def slice_add_backward(grad: Storage) -> list[Storage | None]:
        """Backward of an in-place addition to a slice (CopySlices): copies of the whole and of the slice, and a sum."""
        result = tape.new(all_shape, dtype, "CopySlices")
        other_streams = tape.new(others_shape, dtype, "CopySlices")
        total = tape.new(first_shape, dtype, "sum")
        del other_streams
        return [result, total]

    summed = tape.record(Value(corrected.storage, all_shape, dtype), (corrected, first), slice_add_backward)
    other_streams = slices(tape, summed, others_shape)[0]

    out = Value(corrected.storage, all_shape, dtype)
    return operator(tape, out, (summed, other_streams), "CopySlices", later=[(others_shape, dtype, "zeros")])


def spread_streams(ctx: Context, x: Value, streams: int) -> Value:
    """Make the AltUp streams of the embedding: its rows and ``streams - 1`` projections of them, scaled to their
    magnitude.

    ``x``: [tokens, hidden]. Returns [streams * tokens, hidden]. The list of all is a variable until the last layer is
    done.
    """
    all_streams = [x]
    target = _magnitude(ctx, x)
    for i in range(streams - 1):
        weights = _square(ctx, f"altup_projections.{i}", x.shape[-1])
        all_streams.append(_with_magnitude(ctx, linear(ctx.tape, x, weights, "altup projection"), target))
    ctx.model_outputs += all_streams[1:]
    return cat(ctx.tape, tuple(all_streams), (streams * x.shape[0], x.shape[-1]), "stack streams")


def join_streams(ctx: Context, x: Value, streams: int) -> Value:
    """Average all AltUp streams, each projected and scaled to the magnitude of the first, for the final norm.

    ``x``: [streams * tokens, hidden]. Returns [tokens, hidden].
    """
    tape, shape = ctx.tape, (x.shape[0] // streams, x.shape[-1])
    all_streams = [slices(tape, x, shape)[0]]
    target = _magnitude(ctx, slices(tape, x, shape)[0])
    for i in range(streams - 1):
        weights = _square(ctx, f"altup_unembed_projections.{i}", shape[-1])
        projected = linear(tape, slices(tape, x, shape)[0], weights, "altup unembed projection")
        all_streams.append(_with_magnitude(ctx, projected, target))
    stacked = cat(tape, tuple(all_streams), x.shape, "stack streams")
    return operator(tape, tape.value(shape, stacked.dtype, "mean of streams"), stacked, "mean backward")


def _square(ctx: Context, name: str, width: int) -> Weights:
    """Return a [width, width] matrix outside the layers, with its LoRA adapter if the targets name it."""
    plain, adapter = Weights(ctx.parameter(name, (width, width))), ctx.setting.adapter
    return plain if adapter is None or not adapts(adapter, name) else ctx.adapted(name, plain, adapter)


def _magnitude(ctx: Context, x: Value) -> Value:
    """Compute the magnitude of each row, ``mean(x ** 2) ** 0.5``, in fp32 under autocast."""
    tape = ctx.tape
    fp32_rows = cast(tape, x, "fp32") if tape.autocast else x  # pow is on autocast's fp32 list
    return power(tape, mean_rows(tape, power(tape, fp32_rows)))


def _with_magnitude(ctx: Context, x: Value, target: Value) -> Value:
    """Scale each row to a magnitude: ``x * target / sqrt(mean(x ** 2))``."""
    tape = ctx.tape
    x = cast(tape, x, ctx.setting.param_dtype)
    fp32_rows = cast(tape, x, "fp32") if tape.autocast else x
    magnitude = unary(tape, clamp(tape, mean_rows(tape, power(tape, fp32_rows)), 1), "sqrt")
    return divide_rows(tape, mul(tape, x, target), magnitude)
