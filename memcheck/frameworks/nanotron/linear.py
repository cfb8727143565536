"""nanotron's parallel linear layers and its norms: what each keeps, gathers and makes.

Sources: nanotron ``parallel/tensor_parallel/functional.py`` (column_linear, row_linear,
_ColumnLinearAsyncCommunication, _ColumnLinearNoAsyncCommunicationReduceScatterMode, _RowLinearAsyncCommunication),
``distributed_differentiable_primitives.py``, ``nn/layer_norm.py``; flash-attn ``ops/triton/layer_norm.py``.

``REDUCE_SCATTER`` is sequence parallelism: rows are gathered in front of a column-parallel layer, into one buffer that
is never freed unless ``tp_recompute_allgather`` is false: then into a tensor that the layer keeps.
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.kernels import matmul
from memcheck.autograd.modules import rms_norm_pieces
from memcheck.autograd.operator import copy, operator
from memcheck.autograd.tensor import Parameter, Storage, Value
from memcheck.errors import UnsupportedError
from memcheck.models.types import Norm

NORM_PROGRAMS = 132 * 8
"""Rows of a norm's partial weight gradients: eight for each multiprocessor of an H100
(flash-attn ``ops/triton/layer_norm.py``, _layer_norm_bwd)."""


def scatters(setting: Setting) -> bool:
    """``tp_mode: REDUCE_SCATTER`` over several ranks."""
    return setting.sequence_parallel and setting.tensor_parallel > 1


def gathers_again(setting: Setting) -> bool:
    """``tp_recompute_allgather``."""
    return bool(setting.option("tp_recompute_allgather", True))


def is_async(setting: Setting) -> bool:
    """``tp_linear_async_communication``."""
    return bool(setting.option("tp_linear_async_communication", False))


def _require_rms_norm(spec: Norm | None) -> Norm | None:
    if spec is not None and spec.kind != "rmsnorm":
        raise UnsupportedError(f"nanotron has no norm of the kind {spec.kind}")
    return spec


def norm(ctx: Context, spec: Norm | None, x: Value, name: str = "norm") -> Value:
    """Apply nanotron's ``TritonRMSNorm`` to ``x`` [tokens, width]: it saves its input and an fp32 rstd per row.

    ``spec``: the norm; any other than an RMSNorm is refused. Backward sums dW over the kernel's programs in fp32.
    """
    weight, _ = ctx.norm_weight(_require_rms_norm(spec), name)
    if weight is None:
        return x
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    out = tape.value(shape, dtype, name)
    saved = (x.storage, tape.new(shape[:-1], "fp32", name + " rstd"))
    needs_grad, width = x.origin is not None, shape[-1]

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, and dW summed over the kernel's programs in fp32."""
        dx = tape.new(shape, dtype, name + " backward")
        partial_dw = tape.new((NORM_PROGRAMS, width), "fp32", name + " partial dW")
        fp32_dw = tape.new((width,), "fp32", name + " dW")
        del partial_dw
        dw = tape.new((width,), dtype, name + " dW")
        del fp32_dw
        return [dx if needs_grad else None, dw]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=saved)


def unfused_norm(ctx: Context, spec: Norm | None, x: Value, name: str) -> Value:
    """Compute ``LlamaRMSNorm`` of ``x`` [tokens, hidden], operator by operator."""
    weight, _ = ctx.norm_weight(_require_rms_norm(spec), name)
    return rms_norm_pieces(ctx.tape, x, weight)


def column(ctx: Context, x: Value, name: str, outputs: int, *, bias: bool = False) -> Value:
    """Compute a column-parallel linear layer: [tokens, outputs]. ``outputs``: of this rank."""
    weight = ctx.parameter(name, (outputs, x.shape[-1]))
    bias_parameter = ctx.parameter(name + ".bias", (outputs,)) if bias else None
    if scatters(ctx.setting):
        return _gather_and_multiply(ctx, x, weight, bias_parameter, name)
    if is_async(ctx.setting):
        return _async_column_product(ctx, x, weight, bias_parameter, name)
    return matmul(ctx.tape, x, weight, name, bias=bias_parameter)


def _async_column_product(ctx: Context, x: Value, weight: Parameter, bias: Parameter | None, name: str) -> Value:
    """Compute a column-parallel product with asynchronous communication and without sequence parallelism.

    ``x``: [tokens, inputs], saved. Backward computes dX before dW, since dX is all-reduced while dW is computed.
    """
    tape, shape = ctx.tape, x.shape
    dtype, needs_grad = x.dtype, x.origin is not None
    out = tape.value((*shape[:-1], weight.shape[0]), dtype, name)
    biases = [] if bias is None else [bias]

    def run(grad: Storage) -> list[Storage | None]:
        dx = tape.new(shape, dtype, name + " dX")
        db = [tape.new(b.shape, b.dtype, name + " db") for b in biases]
        return [dx if needs_grad else None, tape.new(weight.shape, weight.dtype, name + " dW"), *db]

    return tape.record(
        out, (x, *(tape.parameter(parameter) for parameter in (weight, *biases))), run, saves=(x.storage,)
    )


def _gather_and_multiply(ctx: Context, x: Value, weight: Parameter, bias: Parameter | None, name: str) -> Value:
    """All-gather the tokens of the tensor-parallel group, and multiply them by the weight: [tokens, outputs].

    ``x``: this rank's tokens. With ``tp_recompute_allgather`` all tokens are gathered into a shared buffer, and again
    in backward; without it into a tensor that the layer saves.
    """
    tape, setting = ctx.tape, ctx.setting
    shape, dtype = x.shape, x.dtype
    gathered_shape, asynchronous = (ctx.tokens, shape[-1]), is_async(setting)
    gathered = None if gathers_again(setting) else tape.new(gathered_shape, dtype, name + " all-gather")
    out = tape.value((ctx.tokens, weight.shape[0]), dtype, name)
    saved_input = x.storage if gathered is None else gathered
    needs_grad, biases = x.origin is not None, [] if bias is None else [bias]

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, reduce-scattered, and dW, which asynchronous communication computes last."""
        dw = None if asynchronous else tape.new(weight.shape, weight.dtype, name + " dW")
        dx = tape.new(gathered_shape, dtype, name + " dX")
        local_dx = tape.new(shape, dtype, name + " reduce-scatter")
        db = [tape.new(b.shape, b.dtype, name + " db") for b in biases]
        if dw is None:
            dw = tape.new(weight.shape, weight.dtype, name + " dW")
        del dx
        return [local_dx if needs_grad else None, dw, *db]

    return tape.record(
        out, (x, *(tape.parameter(parameter) for parameter in (weight, *biases))), run, saves=(saved_input,)
    )


def row(ctx: Context, x: Value, name: str, outputs: int, *, strided: bool = False) -> Value:
    """Compute a row-parallel layer, all-reduced in place or reduce-scattered under sequence parallelism.

    ``strided``: its input is not contiguous, so that the product copies it.
    """
    tape, setting = ctx.tape, ctx.setting
    weight = ctx.parameter(name, (outputs, x.shape[-1]))
    if is_async(setting):
        return _async_row_product(ctx, x, weight, name, strided=strided)
    if strided:
        x = copy(tape, x, name + " input")
    if not scatters(setting):
        return matmul(tape, x, weight, name)
    out = matmul(tape, x, weight, name)
    del x
    scattered = tape.value((ctx.residual_tokens, out.shape[-1]), out.dtype, name + " reduce-scatter")
    return operator(tape, scattered, out, name + " all-gather")


def _async_row_product(ctx: Context, x: Value, weight: Parameter, name: str, *, strided: bool) -> Value:
    """Compute a row-parallel product and its reduce-scatter in one autograd Function: [tokens / tp, outputs].

    ``strided``: the input is not contiguous, so that each product copies it; the Function saves the strided one.
    Backward gathers the output's gradient into a shared buffer, and computes dX before dW.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    contiguous_input = tape.new(shape, dtype, name + " input") if strided else None
    out = tape.value((ctx.tokens, weight.shape[0]), dtype, name)
    del contiguous_input
    if scatters(ctx.setting):
        partial, out = out, tape.value((ctx.residual_tokens, weight.shape[0]), dtype, name + " reduce-scatter")
        del partial

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, then dW, for which a strided input is copied."""
        dx = tape.new(shape, dtype, name + " dX")
        contiguous_input = tape.new(shape, dtype, name + " input") if strided else None
        dw = tape.new(weight.shape, weight.dtype, name + " dW")
        del contiguous_input
        return [dx, dw]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=(x.storage,))
