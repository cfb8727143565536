"""Megatron's parallel linear layers and norms: what each keeps, gathers and reduces.

Sources: TransformerEngine ``pytorch/module/linear.py``, ``layernorm_linear.py`` (one autograd function for norm, gather
and product); Megatron-core ``tensor_parallel/layers.py`` (LinearWithGradAccumulationAndAsyncCommunication, the local
spec and every output layer) and ``tensor_parallel/mappings.py``.

Under sequence parallelism a column-parallel layer keeps its *shard* of the input and gathers it again in backward. The
local spec gathers into the global memory buffer (``core/utils.py``, GlobalMemoryBuffer), which is never freed and is
counted with the rank's workspaces; TransformerEngine gathers into a fresh tensor.

With ``gradient_accumulation_fusion`` the weight's gradient is added to ``main_grad`` by the product itself; what
autograd sees is one cached dummy per weight shape (``module/base.py``, get_dummy_wgrad), counted with the workspaces.
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting, adapts
from memcheck.autograd.modules import fused_norm
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.models.types import Norm
from memcheck.record import Record


def uses_te(setting: Setting) -> bool:
    """Whether the layer spec is TransformerEngine's."""
    return setting.option("transformer_impl", "transformer_engine") != "local"


def fuses_wgrad(setting: Setting) -> bool:
    """``gradient_accumulation_fusion``: on unless the plan says otherwise, and only into persistent main gradients."""
    return setting.main_grad_dtype is not None and bool(setting.option("gradient_accumulation_fusion", default=True))


def quantizes(setting: Setting) -> bool:
    """Say whether TE's linear layers multiply in fp8 (``fp8_format``): they then keep their input in fp8.

    One byte per element either way: per-tensor recipes keep the transpose or, to gather it again, the rows; MXFP8 the
    columns (``module/linear.py``: update_usage before save_for_backward).
    """
    return bool(setting.option("fp8_format")) and uses_te(setting)


def is_sequence_parallel(ctx: Context) -> bool:
    """Say whether each tensor-parallel rank has only a part of the tokens between layers (sequence parallelism)."""
    return ctx.setting.sequence_parallel and ctx.tp > 1


class Projection(Record):
    """The weight of one linear layer on this rank."""

    weight: Parameter
    bias: Parameter | None = None
    adds_bias: bool = True
    """The product adds the bias itself; otherwise (skip_bias_add) a later fused kernel does."""


def projection(
    ctx: Context, name: str, outputs: int, inputs: int, *, bias: bool = False, adds: bool = True
) -> Projection:
    """Register the weight [outputs, inputs] of a linear layer on this rank, and its bias.

    ``adds``: the layer adds its bias itself; otherwise the bias is returned and added later, fused with other
    operators.
    """
    weight = ctx.parameter(name, (outputs, inputs))
    return Projection(weight, ctx.parameter(name + ".bias", (outputs,)) if bias else None, adds)


def _weight_gradient(ctx: Context, weight: Parameter, label: str) -> Storage | None:
    """Return dW as a tensor of its own; None when the product adds it to main_grad."""
    if not weight.requires_grad or fuses_wgrad(ctx.setting):
        return None
    return ctx.tape.new(weight.shape, weight.dtype, label + " dW")


def norm(ctx: Context, spec: Norm | None, x: Value, name: str = "norm") -> Value:
    """Apply a norm in one kernel, which saves its input and its row statistics; return x unchanged without a norm.

    TE's modules, apex's FusedLayerNorm and torch's norms (``transformer/torch_norm.py``) agree, except that
    ``memory_efficient_layer_norm`` makes apex save the output in place of the input.
    """
    if spec is None:
        return x
    weight, bias = ctx.norm_weight(spec, name)
    kind = "layernorm" if spec.kind.startswith("layernorm") else "rmsnorm"
    if bool(ctx.setting.option("memory_efficient_layer_norm")) and not uses_te(ctx.setting):
        return _output_saving_norm(ctx, x, weight, bias, kind)
    return fused_norm(ctx.tape, x, weight, bias, kind)


def _output_saving_norm(ctx: Context, x: Value, weight: Parameter | None, bias: Parameter | None, kind: str) -> Value:
    """Compute TE's norm that saves its output instead of its input, and the reciprocal deviation of each row
    in fp32.
    """
    tape = ctx.tape
    out = tape.value(x.shape, x.dtype, kind)
    saves = (out, tape.new(x.shape[:-1], "fp32", kind + " rstd"))
    inputs = (x, *(tape.parameter(parameter) for parameter in (weight, bias) if parameter is not None))
    return operator(tape, out, inputs, kind + " backward", saves=saves)


def column(ctx: Context, x: Value, projection: Projection, label: str, spec: Norm | None = None) -> Value:
    """Compute a column-parallel linear layer, with its LoRA adapter and with the norm before it if TE fuses the two.

    ``x``: [this rank's tokens, inputs]. ``projection``: weight and bias. ``spec``: the norm before the layer
    (TELayerNormColumnParallelLinear); None: there is none. Returns [tokens, outputs / tp]. Under sequence parallelism a
    rank has a part of the tokens, and the layer gathers those of the whole tensor-parallel group.
    """
    adapter = ctx.setting.adapter
    if adapter is not None and adapts(adapter, projection.weight.name):
        from memcheck.frameworks.megatron.adapters import adapted_column

        return adapted_column(ctx, x, projection, label, spec)
    return base_column(ctx, x, projection, label, spec)


def base_column(ctx: Context, x: Value, projection: Projection, label: str, spec: Norm | None) -> Value:
    """Compute a column-parallel layer without its adapter, by TE or by Megatron itself; see :func:`column`."""
    if uses_te(ctx.setting):
        return _te_column(ctx, x, projection, label, spec)
    return _local_column(ctx, norm(ctx, spec, x), projection, label)


def norm_statistics(tape: Tape, spec: Norm | None, rows: tuple[int, ...], label: str) -> list[Storage]:
    """Allocate what TE's norm kernel saves of each row in fp32: the reciprocal deviation, and LayerNorm's mean.

    ``rows``: shape of the input without its last dimension. Empty without a norm.
    """
    if spec is None:
        return []
    statistics = [tape.new(rows, "fp32", label + " rstd")]
    if spec.kind.startswith("layernorm"):
        statistics.append(tape.new(rows, "fp32", label + " mean"))
    return statistics


def _te_column(ctx: Context, x: Value, projection: Projection, label: str, spec: Norm | None) -> Value:
    """Compute TE's column-parallel layer: norm, all-gather and product in one autograd function.

    ``spec``: the norm; None: TELinear without one. Saves x, the product's input (normalised, in fp8 if TE multiplies in
    fp8) and the norm's statistics per row. Under sequence parallelism it saves this rank's tokens of the input and
    gathers them again in backward. Source: TransformerEngine pytorch/module/layernorm_linear.py.
    """
    tape, gathers_input = ctx.tape, is_sequence_parallel(ctx)
    weight, bias = projection.weight, projection.bias if projection.adds_bias else None
    norm_parameters = [n for n in ctx.norm_weight(spec, label + ".layer_norm") if n is not None]
    x_shape, dtype = x.shape, x.dtype
    gathered_shape = (ctx.tokens, x_shape[-1]) if gathers_input else x_shape
    input_dtype = "fp8" if quantizes(ctx.setting) else dtype
    needs_input_grad, needs_weight_grad = x.needs_grad, weight.requires_grad
    product_input = x.storage
    if spec is not None or input_dtype != dtype:
        # the norm's kernel writes fp8 itself; without a norm the input is cast
        product_input = tape.new(x_shape, input_dtype, label + " input")
    statistics = norm_statistics(tape, spec, x_shape[:-1], label)
    gathered = tape.new(gathered_shape, input_dtype, label + " all-gather") if gathers_input else None
    rowwise_input = None
    if needs_weight_grad and tape.grad_enabled and not gathers_input:
        rowwise_input = rows_in_fp8(ctx, x_shape, label)
    out = tape.value((*gathered_shape[:-1], weight.shape[0]), dtype, label)
    del gathered, rowwise_input  # the product has read them
    saved = [x.storage if spec is not None else None, product_input if needs_weight_grad else None, *statistics]
    del product_input, statistics

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: gather the input again, dX, dW and bias gradient, then reduce-scatter and the norm's backward."""
        gathered = _gathered_for_dw(ctx, gathered_shape, dtype, label) if gathers_input and needs_weight_grad else []
        gradient_copies = gradient_in_fp8(ctx, grad, label)
        dx = tape.new(gathered_shape, dtype, label + " dX")
        reduced = tape.new(x_shape, dtype, label + " reduce-scatter") if gathers_input else dx
        weight_gradients = [_weight_gradient(ctx, weight, label)]
        if bias is not None:
            weight_gradients.append(tape.new(bias.shape, bias.dtype, label + " db"))
        del gathered, gradient_copies
        saved[1] = None  # clear_tensor_data(ln_out): the product's input is freed before the norm's backward
        if spec is None:
            return [reduced if needs_input_grad else None, *weight_gradients]
        norm_dx = tape.new(x_shape, dtype, label + " norm backward")
        norm_gradients = [tape.new(n.shape, n.dtype, label + " norm backward") for n in norm_parameters]
        return [norm_dx if needs_input_grad else None, *norm_gradients, *weight_gradients]

    parameters = [*norm_parameters, weight] if bias is None else [*norm_parameters, weight, bias]
    return tape.record(out, (x, *map(tape.parameter, parameters)), run, saves=saved)


def _gathered_for_dw(ctx: Context, shape: tuple[int, ...], dtype: str, label: str) -> list[Storage]:
    """Gather a column-parallel layer's input for dW under sequence parallelism, to ``shape`` [tokens, inputs].

    In fp8, dW reads columns. MXFP8 gathers these alone; other recipes gather rows, and copy them by columns.
    """
    if not quantizes(ctx.setting):
        return [ctx.tape.new(shape, dtype, label + " all-gather")]
    gathered = [ctx.tape.new(shape, "fp8", label + " all-gather")]
    if ctx.setting.option("fp8_recipe") != "mxfp8":
        gathered.append(ctx.tape.new(shape, "fp8", label + " all-gather by columns"))
    return gathered


def _local_column(ctx: Context, x: Value, projection: Projection, label: str) -> Value:
    """Compute Megatron's own ColumnParallelLinear (local spec): product, then bias, without a fused norm.

    Saves the input if the weight is trained. Under sequence parallelism the input is gathered into the global memory
    buffer, which allocates nothing here (tensor_parallel/layers.py).
    """
    tape = ctx.tape
    gathers_input = is_sequence_parallel(ctx)
    x_shape, dtype = x.shape, x.dtype
    gathered_shape = (ctx.tokens, x_shape[-1]) if gathers_input else x_shape
    out = tape.value((*gathered_shape[:-1], projection.weight.shape[0]), dtype, label)
    weight, bias = projection.weight, projection.bias if projection.adds_bias else None
    if bias is not None:
        unbiased, out = out, tape.value(out.shape, dtype, label + " + bias")
        del unbiased
    needs_input_grad, needs_weight_grad = x.needs_grad, weight.requires_grad
    saved_input = x.storage if needs_weight_grad else None

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, reduce-scattered under sequence parallelism, then dW and the bias gradient."""
        dx = tape.new(gathered_shape, dtype, label + " dX")
        reduced = tape.new(x_shape, dtype, label + " reduce-scatter") if gathers_input else dx
        weight_gradients = [_weight_gradient(ctx, weight, label)]
        if bias is not None:
            weight_gradients.append(tape.new(bias.shape, bias.dtype, label + " db"))
        return [reduced if needs_input_grad else None, *weight_gradients]

    parameters = [weight] if bias is None else [weight, bias]
    return tape.record(out, (x, *map(tape.parameter, parameters)), run, saves=(saved_input,))


def rows_in_fp8(ctx: Context, shape: tuple[int, ...], label: str) -> Storage | None:
    """Allocate a product's input in fp8 by rows; the caller frees it after the product.

    The copy by columns, which is saved for dW, is another tensor. None without fp8.
    """
    return in_fp8(ctx, shape, label + " input by rows") if quantizes(ctx.setting) else None


def in_fp8(ctx: Context, shape: tuple[int, ...], label: str) -> Storage:
    """Allocate a tensor in fp8 with its scales, one byte for 32 elements under MXFP8 or four for 128 in blocks."""
    scaled = ctx.setting.option("fp8_recipe") in ("mxfp8", "blockwise")
    return ctx.tape.new((*shape[:-1], shape[-1] * 33 // 32) if scaled else shape, "fp8", label)


def gradient_in_fp8(ctx: Context, grad: Storage, label: str) -> list[Storage]:
    """Quantise the output gradient by rows for dX and by columns for dW; nothing without fp8."""
    if not quantizes(ctx.setting):
        return []
    return [in_fp8(ctx, grad.shape, label + " gradient in fp8") for _ in range(2)]


def row(ctx: Context, x: Value, projection: Projection, label: str, *, keeps_input: bool = False) -> Value:
    """Compute a row-parallel layer with its LoRA adapter: [tokens, outputs]; under sequence parallelism [tokens / tp,
    ...].

    ``x``: [tokens, inputs / tp]. The partial sums are reduce-scattered under sequence parallelism, otherwise
    all-reduced in place. The bias is added later, by the fused bias-dropout-add. ``keeps_input``: under fp8 the layer
    saves ``x`` itself, which the attention saves anyway, and no fp8 copy (set_save_original_input of linear_proj).
    """
    tape = ctx.tape
    scattered = is_sequence_parallel(ctx)
    x_shape, dtype = x.shape, x.dtype
    full_shape = (*x_shape[:-1], projection.weight.shape[0])
    weight, dx_spec = projection.weight, (x_shape, dtype) if x.needs_grad else None
    saved_input = _saved_input(ctx, x, label, keeps_input=keeps_input) if weight.requires_grad else None
    rowwise_input = rows_in_fp8(ctx, x_shape, label)
    out = tape.value(full_shape, dtype, label)
    if scattered:
        partial, out = out, tape.value((ctx.residual_tokens, full_shape[-1]), dtype, label + " reduce-scatter")
        del partial
    del rowwise_input

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: gather the output gradient under sequence parallelism, then dX and dW."""
        gathered = tape.new(full_shape, dtype, label + " all-gather") if scattered else None
        return product_gradients(ctx, gathered or grad, dx_spec, weight, label)

    result = tape.record(out, (x, tape.parameter(weight)), run, saves=(saved_input,))
    adapter = ctx.setting.adapter
    if adapter is None or not adapts(adapter, weight.name):
        return result
    from memcheck.frameworks.megatron.adapters import row_adapter

    return row_adapter(ctx, x, result, weight.name, full_shape[-1], ctx.tp)


def product_gradients(
    ctx: Context, grad: Storage, dx_spec: tuple[tuple[int, ...], str] | None, weight: Parameter, label: str
) -> list[Storage | None]:
    """Return dX and dW of a product, from the gradient of its output. In fp8 both read a cast of that.

    ``dx_spec``: shape and dtype of dX; None: the input needs no gradient. dW is None if it is added to main_grad.
    """
    cast = gradient_in_fp8(ctx, grad, label)
    dx = ctx.tape.new(*dx_spec, label + " dX") if dx_spec is not None else None
    dw = _weight_gradient(ctx, weight, label)
    del cast
    return [dx, dw]


def _saved_input(ctx: Context, x: Value, label: str, *, keeps_input: bool) -> Storage | None:
    """Return what a row-parallel layer saves of its input: the input itself, or its copy in fp8."""
    keeps_original = keeps_input and ctx.setting.option("fp8_recipe", "delayed") != "delayed"
    if not quantizes(ctx.setting) or keeps_original or not ctx.tape.grad_enabled:
        return x.storage
    return in_fp8(ctx, x.shape, label + " input")


def replicated(ctx: Context, x: Value, projection: Projection, label: str) -> Value:
    """Compute a linear layer that tensor parallelism does not divide (``parallel_mode="duplicated"``).

    Each tensor rank applies the full weight to its own tokens: ``x`` [tokens, inputs] becomes [tokens, outputs]. Saves
    the input if the weight is trained. The LoRA adapter's output is added if there is one.
    """
    tape = ctx.tape
    x_shape, dtype = x.shape, x.dtype
    weight, dx_spec = projection.weight, (x_shape, dtype) if x.needs_grad else None
    saved_input = _saved_input(ctx, x, label, keeps_input=False) if weight.requires_grad else None
    rowwise_input = rows_in_fp8(ctx, x_shape, label)
    out = tape.value((*x_shape[:-1], projection.weight.shape[0]), dtype, label)
    del rowwise_input

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX and dW."""
        return product_gradients(ctx, grad, dx_spec, weight, label)

    result = tape.record(out, (x, tape.parameter(weight)), run, saves=(saved_input,))
    adapter = ctx.setting.adapter
    if adapter is None or not adapts(adapter, weight.name):
        return result
    from memcheck.frameworks.megatron.adapters import replicated_adapter

    return replicated_adapter(ctx, x, result, weight)


def gather_sequence(ctx: Context, x: Value, label: str) -> Value:
    """Compute ``gather_from_sequence_parallel_region``: all tokens of the tensor group; backward is a
    reduce-scatter.
    """
    tape = ctx.tape
    return operator(tape, tape.value((ctx.tokens, *x.shape[1:]), x.dtype, label), x, label + " backward")
