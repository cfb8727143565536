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

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.modules import fused_norm
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Value
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
    if ctx.setting.adapter is not None:
        from memcheck.frameworks.megatron.adapters import adapted_column, column_adapter, wraps
        from memcheck.frameworks.megatron.bridge_adapters import bridged_column, is_bridged

        if wraps(ctx.setting.adapter, projection.weight.name):
            if uses_te(ctx.setting) and spec is not None:
                return adapted_column(ctx, x, projection, label, spec)
            x = norm(ctx, spec, x)
            if uses_te(ctx.setting):
                base = _te_column(ctx, x, projection, label, None)
            else:
                base = _local_column(ctx, x, projection, label)
            if is_bridged(ctx.setting):
                return bridged_column(ctx, x, base, projection.weight.name, projection.weight.shape[0])
            gathered = gather_sequence(ctx, x, label + " adapter all-gather") if is_sequence_parallel(ctx) else x
            del x
            return column_adapter(ctx, gathered, base, projection.weight.name, projection.weight.shape[0], ctx.tp)
    if uses_te(ctx.setting):
        return _te_column(ctx, x, projection, label, spec)
    return _local_column(ctx, norm(ctx, spec, x), projection, label)


def _te_column(ctx: Context, x: Value, projection: Projection, label: str, spec: Norm | None) -> Value:
    """Compute TE's column-parallel layer: norm, all-gather and product in one autograd function.

    ``spec``: the norm; None: TELinear without one. Saves x, the product's input (normalised, in fp8 if TE multiplies in
    fp8) and the norm's statistics per row. Under sequence parallelism it saves this rank's tokens of the input and
    gathers them again in backward. Source: TransformerEngine pytorch/module/layernorm_linear.py.
    """
    tape = ctx.tape
    gathers_input = is_sequence_parallel(ctx)
    x_shape, dtype = x.shape, x.dtype
    gathered_shape = (ctx.tokens, x_shape[-1]) if gathers_input else x_shape
    norm_weight, norm_bias = ctx.norm_weight(spec, label + ".layer_norm")
    stats = []
    product_input = x.storage
    input_dtype = "fp8" if quantizes(ctx.setting) else dtype
    if spec is not None or input_dtype != dtype:
        # the norm's kernel writes fp8 itself; without a norm the input is cast
        product_input = tape.new(x_shape, input_dtype, label + " input")
    if spec is not None:
        rows = x_shape[:-1]
        stats = [tape.new(rows, "fp32", label + " rstd")]
        if spec.kind.startswith("layernorm"):
            stats.append(tape.new(rows, "fp32", label + " mean"))
    needs_input_grad = x.needs_grad
    needs_weight_grad = projection.weight.requires_grad
    gathered = tape.new(gathered_shape, input_dtype, label + " all-gather") if gathers_input else None
    rowwise_input = (
        rows_in_fp8(ctx, x_shape, label) if needs_weight_grad and tape.grad_enabled and not gathers_input else None
    )
    out = tape.value((*gathered_shape[:-1], projection.weight.shape[0]), dtype, label)
    del gathered, rowwise_input
    saved = [x.storage if spec is not None else None, product_input if needs_weight_grad else None, *stats]
    del product_input, stats
    weight, bias = projection.weight, projection.bias
    norm_parameters = [n for n in (norm_weight, norm_bias) if n is not None]

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: gather the input again, dX, dW and bias gradient, then reduce-scatter and the norm's backward."""
        gathered = []
        if gathers_input and needs_weight_grad:
            gathered.append(tape.new(gathered_shape, input_dtype, label + " all-gather"))
            if input_dtype != dtype and ctx.setting.option("fp8_recipe") != "mxfp8":
                # dW reads fp8 columns: MXFP8 gathers only these, other recipes make them out of the gathered rows
                gathered.append(tape.new(gathered_shape, input_dtype, label + " all-gather by columns"))
        cast = gradient_in_fp8(ctx, grad, label)
        dx = tape.new(gathered_shape, dtype, label + " dX")
        reduced = tape.new(x_shape, dtype, label + " reduce-scatter") if gathers_input else dx
        dw = _weight_gradient(ctx, weight, label)
        db = tape.new(bias.shape, bias.dtype, label + " db") if bias is not None and projection.adds_bias else None
        del gathered, cast
        saved[1] = None  # clear_tensor_data(ln_out): the product's input is freed before the norm's backward
        input_gradient: Storage | None = reduced
        norm_gradients: list[Storage | None] = []
        if spec is not None:
            input_gradient = tape.new(x_shape, dtype, label + " norm backward")
            norm_gradients = [tape.new(n.shape, n.dtype, label + " norm backward") for n in norm_parameters]
        del dx, reduced
        weight_gradients: list[Storage | None] = [dw, db] if bias is not None and projection.adds_bias else [dw]
        return [input_gradient if needs_input_grad else None, *norm_gradients, *weight_gradients]

    inputs = [x, *(tape.parameter(n) for n in norm_parameters), tape.parameter(weight)]
    if bias is not None and projection.adds_bias:
        inputs.append(tape.parameter(bias))
    return tape.record(out, tuple(inputs), run, saves=saved)


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
    weight, bias = projection.weight, projection.bias
    adds_bias = bias is not None and projection.adds_bias
    if adds_bias:
        unbiased, out = out, tape.value(out.shape, dtype, label + " + bias")
        del unbiased
    needs_input_grad, needs_weight_grad = x.needs_grad, weight.requires_grad
    saved_input = x.storage if needs_weight_grad else None

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, reduce-scattered under sequence parallelism, then dW and the bias gradient."""
        dx = tape.new(gathered_shape, dtype, label + " dX")
        reduced = tape.new(x_shape, dtype, label + " reduce-scatter") if gathers_input else dx
        dw = _weight_gradient(ctx, weight, label)
        db = tape.new(bias.shape, bias.dtype, label + " db") if bias is not None and adds_bias else None
        del dx
        input_gradient = reduced if needs_input_grad else None
        return [input_gradient, dw, db] if adds_bias else [input_gradient, dw]

    inputs = [x, tape.parameter(weight)]
    if bias is not None and adds_bias:
        inputs.append(tape.parameter(bias))
    return tape.record(out, tuple(inputs), run, saves=(saved_input,))


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
    weight = projection.weight
    needs_input_grad, needs_weight_grad = x.needs_grad, weight.requires_grad
    saved_input = _saved_input(ctx, x, label, keeps_input=keeps_input) if needs_weight_grad else None
    rowwise_input = rows_in_fp8(ctx, x_shape, label)
    out = tape.value(full_shape, dtype, label)
    if scattered:
        partial, out = out, tape.value((ctx.residual_tokens, full_shape[-1]), dtype, label + " reduce-scatter")
        del partial
    del rowwise_input

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: gather the output gradient under sequence parallelism, then dX and dW."""
        gathered = tape.new(full_shape, dtype, label + " all-gather") if scattered else None
        cast = gradient_in_fp8(ctx, gathered or grad, label)
        dx = tape.new(x_shape, dtype, label + " dX") if needs_input_grad else None
        dw = _weight_gradient(ctx, weight, label)
        del gathered, cast
        return [dx, dw]

    result = tape.record(out, (x, tape.parameter(weight)), run, saves=(saved_input,))
    if ctx.setting.adapter is None:
        return result
    from memcheck.frameworks.megatron.adapters import row_adapter, wraps

    wrapped = wraps(ctx.setting.adapter, weight.name)
    return row_adapter(ctx, x, result, weight.name, full_shape[-1], ctx.tp) if wrapped else result


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
    weight, needs_input_grad = projection.weight, x.needs_grad
    saved_input = _saved_input(ctx, x, label, keeps_input=False) if weight.requires_grad else None
    rowwise_input = rows_in_fp8(ctx, x_shape, label)
    out = tape.value((*x_shape[:-1], projection.weight.shape[0]), dtype, label)
    del rowwise_input

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX if the input needs a gradient, and dW; in fp8 both read a cast of the output gradient."""
        cast = gradient_in_fp8(ctx, grad, label)
        dx = tape.new(x_shape, dtype, label + " dX") if needs_input_grad else None
        dw = _weight_gradient(ctx, weight, label)
        del cast
        return [dx, dw]

    result = tape.record(out, (x, tape.parameter(weight)), run, saves=(saved_input,))
    if ctx.setting.adapter is None:
        return result
    from memcheck.frameworks.megatron.adapters import whole_adapter, wraps

    return whole_adapter(ctx, x, result, weight) if wraps(ctx.setting.adapter, weight.name) else result


def gather_sequence(ctx: Context, x: Value, label: str) -> Value:
    """Compute ``gather_from_sequence_parallel_region``: all tokens of the tensor group; backward is a
    reduce-scatter.
    """
    tape = ctx.tape
    return operator(tape, tape.value((ctx.tokens, *x.shape[1:]), x.dtype, label), x, label + " backward")
