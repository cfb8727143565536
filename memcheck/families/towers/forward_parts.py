"""What the forward passes of several towers share: patches, positions, pooling, matrices, convolutions, the scatter."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import activation, fused_norm
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, copy, operator, slices
from memcheck.autograd.tensor import Leaf, Storage, Value, promote
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def keep_in_variable(ctx: Context, x: Value) -> None:
    """Keep ``x`` allocated after its last use: a variable of the model's forward, or the tower's output, refers to it.

    The reference has no place in the graph.
    """
    ctx.extra_outputs.append(Value(x.storage, x.shape, x.dtype))


def unused_post_layernorm(ctx: Context, x: Value) -> None:
    """Record the tower's last norm of ``x``, [rows, hidden]. Its result stays in the output, where nothing reads it."""
    dtype = "fp32" if ctx.tape.autocast else x.dtype  # autocast runs layer_norm in fp32
    ctx.extra_outputs.append(ctx.tape.value(x.shape, dtype, "post_layernorm"))


def cast_pixel_values(ctx: Context, shape: tuple[int, ...], dtype: str) -> Value:
    """Return ``pixel_values`` in ``dtype``: FSDP's cast where it has made one in that dtype, otherwise a new copy."""
    given = ctx.pixel_values
    return given if given is not None and given.dtype == dtype else ctx.tape.value(shape, dtype, "pixel_values")


def fp32_rotary_tables(ctx: Context, width: int) -> tuple[Storage, ...]:
    """Allocate ``cos.float()`` and ``sin.float()`` of a tower's layer: [patches, width] in fp32.

    Copies are needed only where FSDP2 has cast the layer's arguments to a narrower dtype (``cast_forward_inputs``).
    """
    copied = range(2 if ctx.setting.rotary_table_rows else 0)
    return tuple([ctx.tape.new((ctx.tokens, width), "fp32", "rotary table, widened") for _ in copied])


def flat_pixel_values(ctx: Context, vision: Vision) -> Value:
    """Return ``pixel_values`` [patches, channels] in the tower's dtype: a copy, unless that is fp32."""
    tape, target = ctx.tape, ctx.setting.param_dtype
    shape = (ctx.tokens, vision.values_per_patch)
    if target == "fp32":
        return Value(tape.new((0,), target, "pixel_values"), shape, target)
    return cast_pixel_values(ctx, shape, target)


def patch_convolution(
    ctx: Context,
    vision: Vision,
    rows: int,
    weight: ParameterTensor,
    bias: ParameterTensor | None,
    *,
    outside: bool = False,
    pixels: Value | None = None,
) -> Value:
    """Compute a convolution whose stride is its kernel: ``rows`` patches become [rows, hidden].

    ``pixel_values`` are cast to the dtype of the weights, and saved if these are trained. ``outside``: the cast runs
    before the tower, in a variable that lives until the tower has run (MiniCPM, Phi-4, PaddleOCR). ``pixels``: a
    copy that the model has made before.
    """
    tape = ctx.tape
    weight_parameter = ctx.parameter(weight.name.removesuffix(".weight"), weight.shape)
    bias_parameter = ctx.parameter(bias.name, bias.shape) if bias is not None else None
    dtype = tape.autocast or weight_parameter.dtype
    no_cast = (
        dtype == ("fp32" if vision.pixels_arrive_in_fp32 else ctx.setting.param_dtype) and ctx.pixel_values is None
    )
    if pixels is None or pixels.dtype != dtype:
        pixels = None if no_cast else cast_pixel_values(ctx, (rows, vision.values_per_patch), dtype)
    if outside and pixels is not None and not tape.autocast:
        keep_in_variable(ctx, pixels)
    weight_value = (
        cast(tape, tape.parameter(weight_parameter), tape.autocast)
        if tape.autocast
        else tape.parameter(weight_parameter)
    )
    out = tape.value((rows, weight.shape[0]), dtype, "patch embedding")
    saves = (pixels if weight_parameter.requires_grad else None,)
    if bias_parameter is None:
        return operator(tape, out, weight_value, "patch embedding dW", saves=saves)
    bias_gradient = (bias_parameter.shape, dtype, "patch embedding db")
    return operator(
        tape, out, (weight_value, tape.parameter(bias_parameter)), ["patch embedding dW", bias_gradient], saves=saves
    )


def hold_pixel_values(ctx: Context, vision: Vision, rows: int, dtype: str) -> Value:
    """Copy ``pixel_values``, and its mask if there is one, into variables that live until the image tokens are
    computed.
    """
    pixels = ctx.tape.value((rows, vision.values_per_patch), dtype, "pixel_values")
    keep_in_variable(ctx, pixels)
    if vision.mask_bytes_per_pixel:
        shape = (rows, vision.mask_bytes_per_pixel * vision.patch_side * vision.patch_side)
        ctx.extra_outputs.append(ctx.tape.value(shape, "bool", "pixel_attention_mask"))
    return pixels


def prepend_class_token(ctx: Context, x: Value, token: ParameterTensor, rows: int) -> Value:
    """Prepend a learned token to the patches of each tile with ``torch.cat``: [rows, hidden]."""
    tape = ctx.tape
    parameter = ctx.parameter(token.name, token.shape)
    dtype = promote(x.dtype, parameter.dtype)  # torch.cat promotes
    out = tape.value((rows, x.shape[1]), dtype, "cat class token")
    return operator(
        tape, out, (x, tape.parameter(parameter)), ["contiguous gradient", (token.shape, parameter.dtype, "sum")]
    )


def add_position_embedding(ctx: Context, x: Value, table: ParameterTensor, *, looked_up: bool = True) -> Value:
    """Add a table of learned positions to ``x`` [rows, hidden]; the table has one row for each patch of a tile.

    ``looked_up``: the model looks the table up by ``position_ids`` (an embedding); otherwise it adds the table itself.
    """
    tape = ctx.tape
    parameter = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    embedded = tape.new(table.shape, parameter.dtype, "positions") if looked_up else None
    out = tape.value(x.shape, promote(x.dtype, parameter.dtype), "add positions")
    del embedded
    needs_grad, trained = x.needs_grad, parameter.requires_grad
    shape, dtype = table.shape, parameter.dtype
    rows, input_dtype = x.shape, x.dtype

    def add_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradient of ``x``, in its dtype, and that of the table, a sum over tiles."""
        dx: Storage | None = None
        if needs_grad:
            dx = grad if grad.dtype == input_dtype else tape.new(rows, input_dtype, "to backward")
        if not trained:
            return [dx, None]
        summed_over_tiles = tape.new(shape, dtype, "sum over tiles")
        return [dx, tape.new(shape, dtype, "embedding backward") if looked_up else summed_over_tiles]

    return tape.record(out, (x, tape.parameter(parameter)), add_backward)


def layer_norm(ctx: Context, x: Value, tensors: tuple[ParameterTensor, ...]) -> Value:
    """Apply a LayerNorm with weight and bias; return x unchanged where there are no tensors."""
    if not tensors:
        return x
    weight, bias = (ctx.parameter(t.name, t.shape) for t in tensors[:2])
    return fused_norm(ctx.tape, x, weight, bias, "layernorm")


def last_hidden_state(ctx: Context, vision: Vision, x: Value) -> Value:
    """Apply the tower's last norm, whose result stays in the tower's output (``last_hidden_state``)."""
    x = layer_norm(ctx, x, vision.closing_tensors)
    keep_in_variable(ctx, x)
    attention_pooling_head(ctx, vision, x)
    return x


def attention_pooling_head(ctx: Context, vision: Vision, x: Value) -> None:
    """Record what SigLIP's attention pooling leaves allocated, if the tower has one (``vision_use_head``).

    No loss reads its result, so that it has no backward. Keys and values of all rows stay in the tower's output until
    the image tokens replace it. ``x``: the tower's rows, [rows, hidden]. Under autocast the copies of its weights stay
    in the cache: of parameters alone, not of ``in_proj_weight``, which is read in slices, nor of the probe, which is
    repeated.
    """
    tape = ctx.tape
    if not any(t.name == "head.probe" for t in vision.unused_tensors):
        return
    weights = [
        t for t in vision.unused_tensors if len(t.shape) > 1 and not t.name.endswith(("in_proj_weight", "probe"))
    ]
    dtype = tape.autocast or x.dtype
    # _in_projection_packed: one product makes keys and values, and `.contiguous()` copies them apart
    kv_temporary = tape.new((x.shape[0], 2 * x.shape[1]), dtype, "keys and values")
    ctx.attention_locals.append(Value(tape.new((x.shape[0], 2 * x.shape[1]), dtype, "keys and values"), x.shape, dtype))
    del kv_temporary
    any_trained = any(p.requires_grad for p in ctx.parameters)
    for t in weights if tape.autocast and any_trained else ():
        copy = tape.value(t.shape, dtype, "autocast copy")
        tape.casts[id(copy)] = copy  # under a key of its own: no later product reads the copy


def average_pool(ctx: Context, vision: Vision, x: Value) -> Value:
    """Average groups of ``merge`` patches with ``AvgPool2d``: [rows / merge, hidden]; its input is saved."""
    tape = ctx.tape
    out = tape.value((x.shape[0] // vision.patches_per_token, x.shape[1]), x.dtype, "avg_pool2d")
    return operator(tape, out, x, "avg_pool2d backward", saves=(x,))


def drop_class_tokens(ctx: Context, vision: Vision, x: Value) -> Value:
    """Return a view of ``x`` without the class tokens (``x[:, 1:]``), whose gradient is padded with zeros."""
    if not vision.class_tokens_per_tile:
        return x
    rows = ctx.setting.images * (vision.rows_per_tile - vision.class_tokens_per_tile)
    return slices(ctx.tape, x, (rows, x.shape[1]))[0]


def pixel_shuffle(ctx: Context, vision: Vision, x: Value) -> Value:
    """Merge ``merge`` patches into one row (``pixel_shuffle``): [rows / merge, hidden * merge], by two transposed
    copies.
    """
    x = copy(ctx.tape, x, "pixel shuffle")
    x = copy(ctx.tape, x, "pixel shuffle")
    return x.view(x.shape[0] // vision.patches_per_token, x.shape[1] * vision.patches_per_token)


def projector_mlp(
    ctx: Context, vision: Vision, x: Value, tensors: tuple[ParameterTensor, ...], *, copies: bool = False
) -> Value:
    """Compute ``linear_2(act(linear_1(x)))``: [rows, outputs].

    ``tensors``: weights and biases of both matrices in order. ``copies``: x is not contiguous, so the product copies
    it (LLaVA).
    """
    tape = ctx.tape
    first, *remaining = tensors
    second = next(t for t in remaining if t.name.endswith(".weight"))
    bias = any(t.name.endswith(".bias") for t in remaining)
    if copies:
        x = copy(tape, x, "contiguous")
    inner = linear_layer(ctx, x, first, bias=bias)
    del x
    activated = activation(tape, inner, vision.activation)
    del inner
    return linear_layer(ctx, activated, second, bias=bias)


def return_image_tokens(ctx: Context, tokens: Value, *, joins: bool) -> Value:
    """Return the image tokens as the model's output holds them.

    ``joins``: ``torch.cat`` over the pictures copies them. ``image_hidden_states`` of the output refers to the tensor
    that is scattered; the tower's output refers to the tensor before the copy.
    """
    ctx.attention_locals = []
    out = copy(ctx.tape, tokens, "cat image tokens") if joins else tokens
    ctx.extra_outputs += [tokens, out] if joins else [out]
    return out


def linear_layer(ctx: Context, x: Value, tensor: ParameterTensor, *, bias: bool = False) -> Value:
    """Multiply ``x`` by the weight ``tensor`` of a linear layer, with LoRA adapters if it has any: [rows, outputs]."""
    return linear(ctx.tape, x, ctx.weights(tensor, bias, adaptable=tensor.linear), tensor.name)


def require_input_grads(x: Value, *, require_grad: bool) -> tuple[Value, list[Value]]:
    """Make the rows of a frozen patch embedding require a gradient (``output.requires_grad_(True)``) where
    ``require_grad`` is set.

    Returns the rows and the list of values that stay live, which then begins with these rows.
    """
    if not require_grad:
        return x, []
    x.origin = Leaf()
    return x, [Value(x.storage, x.shape, x.dtype)]


def cat_image_tokens(ctx: Context, merged: Value) -> Value:
    """Copy the pictures' image tokens, views of one tensor, into one with ``torch.cat``; both stay in variables."""
    out = copy(ctx.tape, merged, "cat image tokens")
    ctx.extra_outputs += [merged, out]
    return out


def save_frozen_convolution_input(ctx: Context, x: Value, out: Value, *, trained: bool) -> Value:
    """Save a convolution's input also where its weights are frozen, as one formula has both gradients.

    Source: torch tools/autograd/derivatives.yaml, ``convolution``.
    """
    if trained or not x.needs_grad:
        return out
    return operator(ctx.tape, Value(out.storage, out.shape, out.dtype), out, GRAD_UNCHANGED, saves=(x,))


def unbiased_convolution(ctx: Context, x: Value, kernel: ParameterTensor, rows: int) -> Value:
    """Compute a convolution without a bias, from [pixels, channels] to [rows, kernels]; its input is always saved."""
    tape = ctx.tape
    parameter = ctx.parameter(kernel.name.removesuffix(".weight"), kernel.shape)
    x = cast(tape, x, tape.autocast) if tape.autocast else x
    weight = cast(tape, tape.parameter(parameter), tape.autocast) if tape.autocast else tape.parameter(parameter)
    out = tape.value((rows, kernel.shape[0]), x.dtype, kernel.name)
    return operator(tape, out, (x, weight), [kernel.name + " dX", kernel.name + " dW"], saves=(x,))


def permuted_copy(ctx: Context, x: Value, rows: int = 0) -> Value:
    """Copy ``x`` into another layout (``permute`` and ``reshape``, or a pad) of ``rows`` rows; backward copies its
    gradient.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    return operator(tape, tape.value((rows or shape[0], *shape[1:]), dtype, "laid out"), x, "laid out backward")


def masked_scatter(ctx: Context, rows: Value, features: Value) -> Value:
    """Scatter the image tokens ``features`` into a new copy of the text embeddings ``rows`` [tokens, hidden].

    Saves the mask, [tokens] bool: its expansion to all channels is a view. The forward's CUDA kernel materialises that
    mask and a prefix sum of it in int64 (aten/src/ATen/native/cuda/IndexKernel.cpp, masked_scatter__cuda). Backward
    masks the rows' gradient, and selects the features' gradient with ``masked_select``, which lists positions as three
    int64 each (FunctionsManual.cpp, masked_scatter_backward; aten IndexKernel.cpp, masked_select_cuda).
    """
    tape = ctx.tape
    if features.dtype != rows.dtype:
        features = cast(tape, features, rows.dtype)
    shape, dtype, features_shape = rows.shape, rows.dtype, features.shape
    out = tape.value(shape, dtype, "masked_scatter")
    full_mask = tape.new(shape, "bool", "masked_scatter mask")
    prefix_sum = tape.new(shape, "int64", "masked_scatter prefix sum")
    del full_mask, prefix_sum
    mask = tape.new(shape[:1], "bool", "image mask")
    rows_need_grad, features_need_grad = rows.needs_grad, features.needs_grad

    def masked_scatter_backward(grad: Storage) -> list[Storage | None]:
        """Return the masked gradient of ``rows``, and that of ``features``, selected by listed positions."""
        rows_gradient = tape.new(shape, dtype, "masked_fill backward") if rows_need_grad else None
        if not features_need_grad:
            return [rows_gradient, None]
        positions = tape.new((*features_shape, 3), "int64", "masked_select places")
        features_gradient = tape.new(features_shape, dtype, "masked_scatter backward")
        del positions
        return [rows_gradient, features_gradient]

    return tape.record(out, (rows, features), masked_scatter_backward, saves=(mask,))


def index_put(ctx: Context, rows: Value, features: Value) -> Value:
    """Put image tokens ``features`` into a new copy of the text embeddings ``rows`` [tokens, hidden] with
    ``index_put``.

    Saves the positions (batch and token index), two int64 for each image token (derivatives.yaml, index_put). Backward
    writes zeros there in a copy of the rows' gradient, and indexes the features' gradient.
    """
    tape = ctx.tape
    shape, dtype, features_shape = rows.shape, rows.dtype, features.shape
    positions = tape.new((features_shape[0], 2), "int64", "places")
    out = tape.value(shape, dtype, "index_put")
    rows_need_grad, features_need_grad = rows.needs_grad, features.needs_grad

    def index_put_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradient of ``rows``, with zeros at the image tokens, and the indexed one of ``features``."""
        rows_gradient = None
        if rows_need_grad:
            zeros = tape.new(features_shape, dtype, "zeros")
            rows_gradient = tape.new(shape, dtype, "index_put backward")
            del zeros
        return [rows_gradient, tape.new(features_shape, dtype, "index backward") if features_need_grad else None]

    return tape.record(out, (rows, features), index_put_backward, saves=(positions,))


def add_image_tokens(ctx: Context, rows: Value, features: Value) -> Value:
    """Add the image tokens ``features`` to the text embeddings ``rows`` at their positions: [image tokens, hidden].

    ``inputs_embeds[mask] + features``, element by element. Saves the mask, [tokens] bool: its expansion is a view. The
    position of every element is listed as three int64. Backward puts the gradient into zeros of all rows, for which it
    sorts the positions (aten IndexingUtils.h, expandTensors; native/cuda/Indexing.cu, index_put_with_sort_kernel).
    """
    tape, features_shape = ctx.tape, features.shape
    shape, dtype = rows.shape, rows.dtype
    selected = tape.new(features_shape, dtype, "looked up in their places")
    positions = tape.new((*features_shape, 3), "int64", "places of image tokens")
    del positions
    out = tape.value(features_shape, dtype, "add image tokens")
    del selected
    rows_need_grad, features_need_grad = rows.needs_grad, features.needs_grad

    def add_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradient of ``rows``, which sorted positions put into zeros; that of ``features`` is ``grad``."""
        if not rows_need_grad:
            return [None, grad if features_need_grad else None]
        zeros = tape.new(shape, dtype, "index backward")
        sorted_positions = tape.new((*features_shape, 6), "int64", "places and their order")
        del sorted_positions
        return [zeros, grad if features_need_grad else None]

    return tape.record(out, (rows, features), add_backward)
