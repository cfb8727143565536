"""What the forward passes of several towers share: patches, positions, pooling, matrices, convolutions, the scatter."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, copy
from memcheck.autograd.indexing import slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import activation
from memcheck.autograd.norm import fused_norm
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Leaf, Storage, Value, promote
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def named(tensors: tuple[ParameterTensor, ...], ending: str) -> ParameterTensor:
    """The tensor whose path ends so."""
    return next(t for t in tensors if t.name.endswith(ending))


def narrow_pixels(ctx: Context, shape: tuple[int, ...], dtype: str) -> Value:
    """``pixel_values`` in a narrower dtype: a copy of the model's own, unless FSDP has made one for all of it."""
    given = ctx.pixels
    return given if given is not None and given.dtype == dtype else ctx.tape.value(shape, dtype, "pixel_values")


def widened_tables(ctx: Context, width: int) -> tuple[Storage, ...]:
    """``cos.float()`` and ``sin.float()`` of a tower's layer: copies where FSDP2 has narrowed what the layer is given
    (``cast_forward_inputs``), else the tower's own.
    """
    copied = range(2 if ctx.setting.table_rows else 0)
    return tuple([ctx.tape.new((ctx.tokens, width), "fp32", "rotary table, widened") for _ in copied])


def rows_of_pixels(ctx: Context, vision: Vision) -> Value:
    """``pixel_values``, a row for each patch, in the tower's dtype: a copy, unless that is fp32."""
    tape, target = ctx.tape, ctx.setting.params
    shape = (ctx.tokens, vision.channels)
    if target == "fp32":
        return Value(tape.new((0,), target, "pixel_values"), shape, target)
    return narrow_pixels(ctx, shape, target)


def convolve(
    ctx: Context,
    vision: Vision,
    rows: int,
    weight: ParameterTensor,
    bias: ParameterTensor | None,
    *,
    outside: bool = False,
    pixels: Value | None = None,
) -> Value:
    """A convolution whose stride is its kernel: ``rows`` patches as [rows, hidden].

    ``pixel_values`` are cast to the dtype of the weights, and kept if these are trained. ``outside``: the cast is in
    front of the tower, in a variable that lives until it is done. ``pixels``: a copy that the model has made before.
    """
    tape = ctx.tape
    w = ctx.parameter(weight.name.removesuffix(".weight"), weight.shape)
    b = ctx.parameter(bias.name, bias.shape) if bias is not None else None
    dtype = tape.autocast or w.dtype
    given = dtype == ("fp32" if vision.cast else ctx.setting.params) and ctx.pixels is None
    if pixels is None or pixels.dtype != dtype:
        pixels = None if given else narrow_pixels(ctx, (rows, vision.channels), dtype)
    if outside and pixels is not None and not tape.autocast:
        ctx.returned.append(Value(pixels.storage, pixels.shape, pixels.dtype))
    wv = cast(tape, tape.parameter(w), tape.autocast) if tape.autocast else tape.parameter(w)
    out = tape.value((rows, weight.shape[0]), dtype, "patch embedding")
    saves = (pixels if w.requires_grad else None,)
    if b is None:
        return operator(tape, out, wv, "patch embedding dW", saves=saves)
    of_bias = (b.shape, dtype, "patch embedding db")
    return operator(tape, out, (wv, tape.parameter(b)), ["patch embedding dW", of_bias], saves=saves)


def picked(ctx: Context, vision: Vision, rows: int, dtype: str) -> Value:
    """A copy of ``pixel_values``, and of its mask if there is one, that a variable refers to until the image tokens are
    there.
    """
    pixels = ctx.tape.value((rows, vision.channels), dtype, "pixel_values")
    ctx.returned.append(Value(pixels.storage, pixels.shape, dtype))
    if vision.mask_bytes:
        shape = (rows, vision.mask_bytes * vision.patch * vision.patch)
        ctx.returned.append(ctx.tape.value(shape, "bool", "pixel_attention_mask"))
    return pixels


def with_class(ctx: Context, x: Value, token: ParameterTensor, rows: int) -> Value:
    """``torch.cat`` of a learned token and the patches of each tile: [rows, hidden]."""
    tape = ctx.tape
    p = ctx.parameter(token.name, token.shape)
    joined = promote(x.dtype, p.dtype)  # torch.cat promotes
    out = tape.value((rows, x.shape[1]), joined, "cat class token")
    return operator(tape, out, (x, tape.parameter(p)), ["contiguous gradient", (token.shape, p.dtype, "sum")])


def with_positions(ctx: Context, x: Value, table: ParameterTensor, *, looked_up: bool = True) -> Value:
    """``embeddings + position_embedding(position_ids)``, or the table itself: one row for each of a tile's."""
    tape = ctx.tape
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    found = tape.new(table.shape, p.dtype, "positions") if looked_up else None
    out = tape.value(x.shape, promote(x.dtype, p.dtype), "add positions")
    del found
    wants, learns, shape, dtype = x.origin is not None, p.requires_grad, table.shape, p.dtype
    rows, stream = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        same = grad.dtype == stream
        passed = None if not wants else grad if same else tape.new(rows, stream, "to backward")
        if not learns:
            return [passed, None]
        summed = tape.new(shape, dtype, "sum over tiles")
        return [passed, tape.new(shape, dtype, "embedding backward") if looked_up else summed]

    return tape.record(out, (x, tape.parameter(p)), run)


def layer_norm(ctx: Context, x: Value, tensors: tuple[ParameterTensor, ...]) -> Value:
    """A LayerNorm with weight and bias; none of no tensors."""
    if not tensors:
        return x
    weight, bias = (ctx.parameter(t.name, t.shape) for t in tensors[:2])
    return fused_norm(ctx.tape, x, weight, bias, "layernorm")


def last_rows(ctx: Context, vision: Vision, x: Value) -> Value:
    """The tower's last norm, whose result is in its output (``last_hidden_state``)."""
    x = layer_norm(ctx, x, vision.closing)
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))
    pooled_beside(ctx, vision, x)
    return x


def pooled_beside(ctx: Context, vision: Vision, x: Value) -> None:
    """SigLIP's attention pooling, if there is one (``vision_use_head``). Its keys and values of all rows live in the
    tower's output until the image tokens take their place there; autocast's copies of its weights stay.
    """
    tape = ctx.tape
    weights = [t for t in vision.unused if len(t.shape) > 1 and not t.name.endswith(("in_proj_weight", "probe"))]
    if len(weights) == len(vision.unused) or not any(t.name == "head.probe" for t in vision.unused):
        return
    dtype = tape.autocast or x.dtype
    both = tape.new((x.shape[0], 2 * x.shape[1]), dtype, "keys and values")
    ctx.named.append(Value(tape.new((x.shape[0], 2 * x.shape[1]), dtype, "keys and values"), x.shape, dtype))
    del both
    learns = any(p.requires_grad for p in ctx.parameters)
    for t in weights if tape.autocast and learns else ():
        copy = tape.value(t.shape, dtype, "autocast copy")
        tape.casts[id(copy)] = copy


def pooling(ctx: Context, vision: Vision, x: Value) -> Value:
    """``AvgPool2d`` of ``merge`` patches: keeps its input."""
    tape = ctx.tape
    out = tape.value((x.shape[0] // vision.merge, x.shape[1]), x.dtype, "avg_pool2d")
    return operator(tape, out, x, "avg_pool2d backward", saves=(x,))


def patches_alone(ctx: Context, vision: Vision, x: Value) -> Value:
    """``x[:, 1:]``: a view without the class tokens, whose gradient is padded with zeros."""
    if not vision.classes:
        return x
    rows = ctx.setting.pictures * (vision.tile - vision.classes)
    return slices(ctx.tape, x, (rows, x.shape[1]))[0]


def shuffled(ctx: Context, vision: Vision, x: Value) -> Value:
    """``pixel_shuffle``: two transposed copies, so that ``merge`` patches lie side by side."""
    x = copy(ctx.tape, x, "pixel shuffle")
    x = copy(ctx.tape, x, "pixel shuffle")
    return x.view(x.shape[0] // vision.merge, x.shape[1] * vision.merge)


def two_matrices(
    ctx: Context, vision: Vision, x: Value, tensors: tuple[ParameterTensor, ...], *, copies: bool = False
) -> Value:
    """``linear_2(act(linear_1(x)))``. ``copies``: x is no contiguous tensor, so that the product copies it."""
    tape = ctx.tape
    first, *others = tensors
    second = next(t for t in others if t.name.endswith(".weight"))
    bias = any(t.name.endswith(".bias") for t in others)
    if copies:
        x = copy(tape, x, "contiguous")
    inner = linear_layer(ctx, x, first, bias=bias)
    del x
    acted = activation(tape, inner, vision.activation)
    del inner
    return linear_layer(ctx, acted, second, bias=bias)


def given_out(ctx: Context, tokens: Value, *, joins: bool) -> Value:
    """Image tokens as the model's output carries them. ``joins``: ``torch.cat`` of the pictures' copies them.

    ``image_hidden_states`` of the output refers to what is scattered; the tower's output to what was there before.
    """
    ctx.named = []
    out = copy(ctx.tape, tokens, "cat image tokens") if joins else tokens
    ctx.returned += [tokens, out] if joins else [out]
    return out


def linear_layer(ctx: Context, x: Value, tensor: ParameterTensor, *, bias: bool = False) -> Value:
    """One matrix."""
    return linear(ctx.tape, x, ctx.weights(tensor, bias, adaptable=tensor.linear), tensor.name)


def hooked(x: Value, *, leaf: bool) -> tuple[Value, list[Value]]:
    """``output.requires_grad_(True)`` of a frozen patch embedding's rows; these come first of what is kept."""
    if not leaf:
        return x, []
    x.origin = Leaf()
    return x, [Value(x.storage, x.shape, x.dtype)]


def features(ctx: Context, merged: Value) -> Value:
    """``torch.cat`` of the pictures' image tokens, which are views of one tensor; both stay in variables."""
    out = copy(ctx.tape, merged, "cat image tokens")
    ctx.returned += [merged, out]
    return out


def kept_input(ctx: Context, x: Value, out: Value, *, trained: bool) -> Value:
    """A convolution keeps its input also where its weights are frozen: one formula has both gradients
    (torch tools/autograd/derivatives.yaml, ``convolution``).
    """
    if trained or x.origin is None:
        return out
    return operator(ctx.tape, Value(out.storage, out.shape, out.dtype), out, PASSED, saves=(x,))


def convolution(ctx: Context, x: Value, kernel: ParameterTensor, rows: int) -> Value:
    """A convolution without a bias of rows [pixels, channels] to ``rows`` rows: keeps its input whatever is trained."""
    tape = ctx.tape
    p = ctx.parameter(kernel.name.removesuffix(".weight"), kernel.shape)
    x = cast(tape, x, tape.autocast) if tape.autocast else x
    weight = cast(tape, tape.parameter(p), tape.autocast) if tape.autocast else tape.parameter(p)
    out = tape.value((rows, kernel.shape[0]), x.dtype, kernel.name)
    return operator(tape, out, (x, weight), [kernel.name + " dX", kernel.name + " dW"], saves=(x,))


def laid_out(ctx: Context, x: Value, rows: int = 0) -> Value:
    """``permute`` and ``reshape``, or a pad, to ``rows`` rows: a copy, and one of its gradient."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    return operator(tape, tape.value((rows or shape[0], *shape[1:]), dtype, "laid out"), x, "laid out backward")


def scatter(ctx: Context, rows: Value, features: Value) -> Value:
    """``rows`` [tokens, hidden]: what was looked up; a new tensor with the image tokens in it.

    The mask [B, S, 1] is expanded without memory, and is all that backward keeps. On CUDA the forward makes the mask
    whole, and a running count of it in int64 (aten/src/ATen/native/cuda/IndexKernel.cpp, masked_scatter__cuda).
    Backward masks the rows' gradient, and picks the features' with ``masked_select``, which lists the places as three
    int64 each (FunctionsManual.cpp, masked_scatter_backward; aten IndexKernel.cpp, masked_select_cuda).
    """
    tape = ctx.tape
    if features.dtype != rows.dtype:
        from memcheck.autograd.elementwise import cast

        features = cast(tape, features, rows.dtype)
    shape, dtype, taken = rows.shape, rows.dtype, features.shape
    out = tape.value(shape, dtype, "masked_scatter")
    whole = tape.new(shape, "bool", "masked_scatter mask")
    count = tape.new(shape, "int64", "masked_scatter prefix sum")
    del whole, count
    mask = tape.new(shape[:1], "bool", "image mask")
    nr, nf = rows.origin is not None, features.origin is not None

    def run(grad: Storage) -> list[Storage | None]:
        filled = tape.new(shape, dtype, "masked_fill backward") if nr else None
        if not nf:
            return [filled, None]
        places = tape.new((*taken, 3), "int64", "masked_select places")
        picked = tape.new(taken, dtype, "masked_scatter backward")
        del places
        return [filled, picked]

    return tape.record(out, (rows, features), run, saves=(mask,))


def put(ctx: Context, rows: Value, features: Value) -> Value:
    """``inputs_embeds.index_put(places, features)``: keeps the places, two int64 each (FunctionsManual.cpp,
    derivatives.yaml: index_put). Backward puts zeros there in a copy of the rows' gradient, and picks the features'.
    """
    tape = ctx.tape
    shape, dtype, taken = rows.shape, rows.dtype, features.shape
    places = tape.new((taken[0], 2), "int64", "places")
    out = tape.value(shape, dtype, "index_put")
    nr, nf = rows.origin is not None, features.origin is not None

    def run(grad: Storage) -> list[Storage | None]:
        filled = None
        if nr:
            zeros = tape.new(taken, dtype, "zeros")
            filled = tape.new(shape, dtype, "index_put backward")
            del zeros
        return [filled, tape.new(taken, dtype, "index backward") if nf else None]

    return tape.record(out, (rows, features), run, saves=(places,))


def added(ctx: Context, rows: Value, features: Value) -> Value:
    """``inputs_embeds[mask] + features``, number by number: keeps the mask, which is expanded without memory. The
    places of every number are listed as three int64 each, and backward, which puts the gradient back into zeros, sorts
    them (aten IndexingUtils.h, expandTensors; native/cuda/Indexing.cu, index_put_with_sort_kernel).
    """
    tape, taken = ctx.tape, features.shape
    shape, dtype = rows.shape, rows.dtype
    found = tape.new(taken, dtype, "looked up in their places")
    places = tape.new((*taken, 3), "int64", "places of image tokens")
    del places
    out = tape.value(taken, dtype, "add image tokens")
    del found
    nr, nf = rows.origin is not None, features.origin is not None

    def run(grad: Storage) -> list[Storage | None]:
        if not nr:
            return [None, grad if nf else None]
        zeros = tape.new(shape, dtype, "index backward")
        listed = tape.new((*taken, 6), "int64", "places and their order")
        del listed
        return [zeros, grad if nf else None]

    return tape.record(out, (rows, features), run)
