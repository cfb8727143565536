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
from memcheck.autograd.norm import fused_norm
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Value
from memcheck.models.types import Norm
from memcheck.record import Record


def uses_te(setting: Setting) -> bool:
    """Whether the layer spec is TransformerEngine's."""
    return setting.option("transformer_impl", "transformer_engine") != "local"


def fuses_wgrad(setting: Setting) -> bool:
    """``gradient_accumulation_fusion``: on unless the plan says otherwise, and only into persistent main gradients."""
    return setting.main_grad is not None and bool(setting.option("gradient_accumulation_fusion", True))


def quantizes(setting: Setting) -> bool:
    """Whether TE's linear layers multiply in fp8 (``fp8_format``): they then keep their input in fp8.

    One byte per element either way: per-tensor recipes keep the transpose or, to gather it again, the rows; MXFP8 the
    columns (``module/linear.py``: update_usage before save_for_backward).
    """
    return bool(setting.option("fp8_format")) and uses_te(setting)


def scatters(ctx: Context) -> bool:
    """Sequence parallelism is in force."""
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
    """Register the weight [outputs, inputs] of a linear layer, and its bias."""
    weight = ctx.parameter(name, (outputs, inputs))
    return Projection(weight, ctx.parameter(name + ".bias", (outputs,)) if bias else None, adds)


def _weight_gradient(ctx: Context, weight: Parameter, label: str) -> Storage | None:
    """dW as a tensor of its own; None when the product adds it to main_grad."""
    if not weight.requires_grad or fuses_wgrad(ctx.setting):
        return None
    return ctx.tape.new(weight.shape, weight.dtype, label + " dW")


def norm(ctx: Context, spec: Norm | None, x: Value, name: str = "norm") -> Value:
    """A norm of its own, in one kernel: keeps its input and its row statistics.

    TE's modules, apex's FusedLayerNorm and torch's norms (``transformer/torch_norm.py``) agree, except that
    ``memory_efficient_layer_norm`` makes apex keep the output in place of the input.
    """
    if spec is None:
        return x
    weight, bias = ctx.norm_weight(spec, name)
    kind = "layernorm" if spec.kind.startswith("layernorm") else "rmsnorm"
    if bool(ctx.setting.option("memory_efficient_layer_norm")) and not uses_te(ctx.setting):
        return _output_saving_norm(ctx, x, weight, bias, kind)
    return fused_norm(ctx.tape, x, weight, bias, kind)


def _output_saving_norm(ctx: Context, x: Value, weight: Parameter | None, bias: Parameter | None, kind: str) -> Value:
    tape = ctx.tape
    out = tape.value(x.shape, x.dtype, kind)
    saves = (out, tape.new(x.shape[:-1], "fp32", kind + " rstd"))
    inputs = (x, *(tape.parameter(p) for p in (weight, bias) if p is not None))
    return operator(tape, out, inputs, kind + " backward", saves=saves)


def column(ctx: Context, x: Value, p: Projection, label: str, spec: Norm | None = None) -> Value:
    """A column-parallel layer, with the norm before it where the spec has one (TELayerNormColumnParallelLinear)."""
    if ctx.setting.adapter is not None:
        from memcheck.frameworks.megatron.adapters import adapted_column, column_adapter, wraps
        from memcheck.frameworks.megatron.bridge_adapters import bridged_column, is_bridged

        if wraps(ctx.setting.adapter, p.weight.name):
            if uses_te(ctx.setting) and spec is not None:
                return adapted_column(ctx, x, p, label, spec)
            x = norm(ctx, spec, x)
            base = _te_column(ctx, x, p, label, None) if uses_te(ctx.setting) else _local_column(ctx, x, p, label)
            if is_bridged(ctx.setting):
                return bridged_column(ctx, x, base, p.weight.name, p.weight.shape[0])
            whole = gather_sequence(ctx, x, label + " adapter all-gather") if scatters(ctx) else x
            del x
            return column_adapter(ctx, whole, base, p.weight.name, p.weight.shape[0], ctx.tp)
    if uses_te(ctx.setting):
        return _te_column(ctx, x, p, label, spec)
    return _local_column(ctx, norm(ctx, spec, x), p, label)


def _te_column(ctx: Context, x: Value, p: Projection, label: str, spec: Norm | None) -> Value:
    tape = ctx.tape
    gathers = scatters(ctx)
    x_shape, dtype = x.shape, x.dtype
    full = (ctx.tokens, x_shape[-1]) if gathers else x_shape
    norm_weight, norm_bias = ctx.norm_weight(spec, label + ".layer_norm")
    stats = []
    inner = x.storage
    narrow = "fp8" if quantizes(ctx.setting) else dtype
    if spec is not None or narrow != dtype:  # the norm's kernel writes fp8 itself; without a norm the input is cast
        inner = tape.new(x_shape, narrow, label + " input")
    if spec is not None:
        rows = x_shape[:-1]
        stats = [tape.new(rows, "fp32", label + " rstd")]
        if spec.kind.startswith("layernorm"):
            stats.append(tape.new(rows, "fp32", label + " mean"))
    wants_x = x.origin is not None
    wants_w = p.weight.requires_grad
    total = tape.new(full, narrow, label + " all-gather") if gathers else None
    by_rows = rows_in_fp8(ctx, x_shape, label) if wants_w and tape.grad_enabled and not gathers else None
    out = tape.value((*full[:-1], p.weight.shape[0]), dtype, label)
    del total, by_rows
    kept = [x.storage if spec is not None else None, inner if wants_w else None, *stats]
    del inner, stats
    weight, bias = p.weight, p.bias
    norms = [n for n in (norm_weight, norm_bias) if n is not None]

    def run(grad: Storage) -> list[Storage | None]:
        total = [tape.new(full, narrow, label + " all-gather")] if gathers and wants_w else []
        if total and narrow != dtype and ctx.setting.option("fp8_recipe") != "mxfp8":
            total.append(tape.new(full, narrow, label + " all-gather by columns"))  # MXFP8 gathers these alone
        cast = gradient_in_fp8(ctx, grad, label)
        gx = tape.new(full, dtype, label + " dX")
        reduced = tape.new(x_shape, dtype, label + " reduce-scatter") if gathers else gx
        gw = _weight_gradient(ctx, weight, label)
        gb = tape.new(bias.shape, bias.dtype, label + " db") if bias is not None and p.adds_bias else None
        del total, cast
        kept[1] = None  # clear_tensor_data(ln_out)
        result: Storage | None = reduced
        gn: list[Storage | None] = []
        if spec is not None:
            result = tape.new(x_shape, dtype, label + " norm backward")
            gn = [tape.new(n.shape, n.dtype, label + " norm backward") for n in norms]
        del gx, reduced
        tail: list[Storage | None] = [gw, gb] if bias is not None and p.adds_bias else [gw]
        return [result if wants_x else None, *gn, *tail]

    inputs = [x, *(tape.parameter(n) for n in norms), tape.parameter(weight)]
    if bias is not None and p.adds_bias:
        inputs.append(tape.parameter(bias))
    return tape.record(out, tuple(inputs), run, saves=kept)


def _local_column(ctx: Context, x: Value, p: Projection, label: str) -> Value:
    tape = ctx.tape
    gathers = scatters(ctx)
    x_shape, dtype = x.shape, x.dtype
    full = (ctx.tokens, x_shape[-1]) if gathers else x_shape
    out = tape.value((*full[:-1], p.weight.shape[0]), dtype, label)
    weight, bias = p.weight, p.bias
    biased = bias is not None and p.adds_bias
    if biased:
        plain, out = out, tape.value(out.shape, dtype, label + " + bias")
        del plain
    wants_x, wants_w = x.origin is not None, weight.requires_grad
    kept = x.storage if wants_w else None

    def run(grad: Storage) -> list[Storage | None]:
        gx = tape.new(full, dtype, label + " dX")
        reduced = tape.new(x_shape, dtype, label + " reduce-scatter") if gathers else gx
        gw = _weight_gradient(ctx, weight, label)
        gb = tape.new(bias.shape, bias.dtype, label + " db") if bias is not None and biased else None
        del gx
        return [reduced if wants_x else None, gw, gb] if biased else [reduced if wants_x else None, gw]

    inputs = [x, tape.parameter(weight)]
    if bias is not None and biased:
        inputs.append(tape.parameter(bias))
    return tape.record(out, tuple(inputs), run, saves=(kept,))


def rows_in_fp8(ctx: Context, shape: tuple[int, ...], label: str) -> Storage | None:
    """A product's input in fp8 by rows, in addition to its copy by columns, which is kept. The copy by rows is freed
    after the product.
    """
    return in_fp8(ctx, shape, label + " input by rows") if quantizes(ctx.setting) else None


def in_fp8(ctx: Context, shape: tuple[int, ...], label: str) -> Storage:
    """A tensor in fp8, with a byte of scale for 32 elements under MXFP8, and four for 128 in blocks."""
    scaled = ctx.setting.option("fp8_recipe") in ("mxfp8", "blockwise")
    return ctx.tape.new((*shape[:-1], shape[-1] * 33 // 32) if scaled else shape, "fp8", label)


def gradient_in_fp8(ctx: Context, grad: Storage, label: str) -> list[Storage]:
    """The output gradient quantised by rows for dX and by columns for dW."""
    if not quantizes(ctx.setting):
        return []
    return [in_fp8(ctx, grad.shape, label + " gradient in fp8") for _ in range(2)]


def row(ctx: Context, x: Value, p: Projection, label: str, *, keeps_input: bool = False) -> Value:
    """A row-parallel layer: reduce-scattered under sequence parallelism, else all-reduced in place.

    Its bias is always left to the bias-dropout-add after it. ``keeps_input``: in fp8 too it keeps the input that its
    producer keeps anyway (set_save_original_input: linear_proj after the attention, except under delayed scaling).
    """
    tape = ctx.tape
    scattered = scatters(ctx)
    x_shape, dtype = x.shape, x.dtype
    full = (*x_shape[:-1], p.weight.shape[0])
    weight = p.weight
    wants_x, wants_w = x.origin is not None, weight.requires_grad
    kept = _kept_input(ctx, x, label, keeps_input=keeps_input) if wants_w else None
    by_rows = rows_in_fp8(ctx, x_shape, label)
    out = tape.value(full, dtype, label)
    if scattered:
        partial, out = out, tape.value((ctx.residual_tokens, full[-1]), dtype, label + " reduce-scatter")
        del partial
    del by_rows

    def run(grad: Storage) -> list[Storage | None]:
        total = tape.new(full, dtype, label + " all-gather") if scattered else None
        cast = gradient_in_fp8(ctx, total or grad, label)
        gx = tape.new(x_shape, dtype, label + " dX") if wants_x else None
        gw = _weight_gradient(ctx, weight, label)
        del total, cast
        return [gx, gw]

    result = tape.record(out, (x, tape.parameter(weight)), run, saves=(kept,))
    if ctx.setting.adapter is None:
        return result
    from memcheck.frameworks.megatron.adapters import row_adapter, wraps

    wrapped = wraps(ctx.setting.adapter, weight.name)
    return row_adapter(ctx, x, result, weight.name, full[-1], ctx.tp) if wrapped else result


def _kept_input(ctx: Context, x: Value, label: str, *, keeps_input: bool) -> Storage | None:
    original = keeps_input and ctx.setting.option("fp8_recipe", "delayed") != "delayed"
    if not quantizes(ctx.setting) or original or not ctx.tape.grad_enabled:
        return x.storage
    return in_fp8(ctx, x.shape, label + " input")


def replicated(ctx: Context, x: Value, p: Projection, label: str) -> Value:
    """A linear layer that every tensor rank holds whole and applies to its own tokens (parallel_mode="duplicated")."""
    tape = ctx.tape
    x_shape, dtype = x.shape, x.dtype
    weight, wants_x = p.weight, x.origin is not None
    kept = _kept_input(ctx, x, label, keeps_input=False) if weight.requires_grad else None
    by_rows = rows_in_fp8(ctx, x_shape, label)
    out = tape.value((*x_shape[:-1], p.weight.shape[0]), dtype, label)
    del by_rows

    def run(grad: Storage) -> list[Storage | None]:
        cast = gradient_in_fp8(ctx, grad, label)
        gx = tape.new(x_shape, dtype, label + " dX") if wants_x else None
        gw = _weight_gradient(ctx, weight, label)
        del cast
        return [gx, gw]

    result = tape.record(out, (x, tape.parameter(weight)), run, saves=(kept,))
    if ctx.setting.adapter is None:
        return result
    from memcheck.frameworks.megatron.adapters import whole_adapter, wraps

    return whole_adapter(ctx, x, result, weight) if wraps(ctx.setting.adapter, weight.name) else result


def gather_sequence(ctx: Context, x: Value, label: str) -> Value:
    """``gather_from_sequence_parallel_region``: all tokens of the tensor group; backward is a reduce-scatter."""
    tape = ctx.tape
    return operator(tape, tape.value((ctx.tokens, *x.shape[1:]), x.dtype, label), x, label + " backward")
