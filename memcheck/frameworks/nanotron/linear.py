"""nanotron's parallel linear layers and its norms: what each keeps, gathers and makes.

Sources: nanotron ``parallel/tensor_parallel/functional.py`` (column_linear, row_linear,
_ColumnLinearAsyncCommunication, _ColumnLinearNoAsyncCommunicationReduceScatterMode, _RowLinearAsyncCommunication),
``distributed_differentiable_primitives.py``, ``nn/layer_norm.py``; flash-attn ``ops/triton/layer_norm.py``.

``REDUCE_SCATTER`` is sequence parallelism: rows are gathered in front of a column-parallel layer, into one buffer that
is never freed unless ``tp_recompute_allgather`` is false: then into a tensor that the layer keeps.
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.elementwise import copy
from memcheck.autograd.matrix import matmul
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Value
from memcheck.errors import UnsupportedError
from memcheck.models.types import Norm

PROGRAMS = 132 * 8
"""Rows of a norm's partial weight gradients: eight for each multiprocessor of an H100
(flash-attn ``ops/triton/layer_norm.py``, _layer_norm_bwd)."""


def scatters(setting: Setting) -> bool:
    """``tp_mode: REDUCE_SCATTER`` over several ranks."""
    return setting.sequence_parallel and setting.tensor > 1


def gathers_again(setting: Setting) -> bool:
    """``tp_recompute_allgather``."""
    return bool(setting.option("tp_recompute_allgather", True))


def communicates_beside(setting: Setting) -> bool:
    """``tp_linear_async_communication``."""
    return bool(setting.option("tp_linear_async_communication", False))


def _root_mean_square(spec: Norm | None) -> Norm | None:
    if spec is not None and spec.kind != "rmsnorm":
        raise UnsupportedError(f"nanotron has no norm of the kind {spec.kind}")
    return spec


def norm(ctx: Context, spec: Norm | None, x: Value, name: str = "norm") -> Value:
    """``TritonRMSNorm``: one kernel that keeps its input and a figure per row."""
    weight, _ = ctx.norm_weight(_root_mean_square(spec), name)
    if weight is None:
        return x
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    out = tape.value(shape, dtype, name)
    kept = (x.storage, tape.new(shape[:-1], "fp32", name + " rstd"))
    wants, width = x.origin is not None, shape[-1]

    def run(grad: Storage) -> list[Storage | None]:
        gx = tape.new(shape, dtype, name + " backward")
        parts = tape.new((PROGRAMS, width), "fp32", name + " partial dW")
        summed = tape.new((width,), "fp32", name + " dW")
        del parts
        gw = tape.new((width,), dtype, name + " dW")
        del summed
        return [gx if wants else None, gw]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=kept)


def norm_in_pieces(ctx: Context, spec: Norm | None, x: Value, name: str) -> Value:
    """``LlamaRMSNorm``, operator by operator."""
    weight, _ = ctx.norm_weight(_root_mean_square(spec), name)
    return rms_norm_pieces(ctx.tape, x, weight)


def column(ctx: Context, x: Value, name: str, outputs: int, *, bias: bool = False) -> Value:
    """A column-parallel layer; ``outputs``: of this rank."""
    weight = ctx.parameter(name, (outputs, x.shape[-1]))
    added = ctx.parameter(name + ".bias", (outputs,)) if bias else None
    if scatters(ctx.setting):
        return _gathered_product(ctx, x, weight, added, name)
    if communicates_beside(ctx.setting):
        return _product(ctx, x, weight, added, name)
    return matmul(ctx.tape, x, weight, name, bias=added)


def _product(ctx: Context, x: Value, weight: Parameter, bias: Parameter | None, name: str) -> Value:
    """Asynchronous communication without a scattered sequence: the input's gradient comes first, and waits."""
    tape, shape, dtype, wants = ctx.tape, x.shape, x.dtype, x.origin is not None
    out = tape.value((*shape[:-1], weight.shape[0]), dtype, name)
    biases = [] if bias is None else [bias]

    def run(grad: Storage) -> list[Storage | None]:
        gx = tape.new(shape, dtype, name + " dX")
        gb = [tape.new(b.shape, b.dtype, name + " db") for b in biases]
        return [gx if wants else None, tape.new(weight.shape, weight.dtype, name + " dW"), *gb]

    return tape.record(out, (x, *(tape.parameter(p) for p in (weight, *biases))), run, saves=(x.storage,))


def _gathered_product(ctx: Context, x: Value, weight: Parameter, bias: Parameter | None, name: str) -> Value:
    """All rows of the group, gathered into the shared buffer, or into a tensor that the layer keeps."""
    tape, setting, shape, dtype = ctx.tape, ctx.setting, x.shape, x.dtype
    whole, beside = (ctx.tokens, shape[-1]), communicates_beside(setting)
    gathered = None if gathers_again(setting) else tape.new(whole, dtype, name + " all-gather")
    out = tape.value((ctx.tokens, weight.shape[0]), dtype, name)
    kept = x.storage if gathered is None else gathered
    wants, biases = x.origin is not None, [] if bias is None else [bias]

    def run(grad: Storage) -> list[Storage | None]:
        gw = None if beside else tape.new(weight.shape, weight.dtype, name + " dW")
        gx = tape.new(whole, dtype, name + " dX")
        part = tape.new(shape, dtype, name + " reduce-scatter")
        gb = [tape.new(b.shape, b.dtype, name + " db") for b in biases]
        if gw is None:
            gw = tape.new(weight.shape, weight.dtype, name + " dW")
        del gx
        return [part if wants else None, gw, *gb]

    return tape.record(out, (x, *(tape.parameter(p) for p in (weight, *biases))), run, saves=(kept,))


def row(ctx: Context, x: Value, name: str, outputs: int, *, strided: bool = False) -> Value:
    """A row-parallel layer, reduced in place or scattered. ``strided``: its input is no matrix until it is copied."""
    tape, setting = ctx.tape, ctx.setting
    weight = ctx.parameter(name, (outputs, x.shape[-1]))
    if communicates_beside(setting):
        return _product_behind(ctx, x, weight, name, strided=strided)
    if strided:
        x = copy(tape, x, name + " input")
    if not scatters(setting):
        return matmul(tape, x, weight, name)
    out = matmul(tape, x, weight, name)
    del x
    part = tape.value((ctx.residual_tokens, out.shape[-1]), out.dtype, name + " reduce-scatter")
    return operator(tape, part, out, name + " all-gather")


def _product_behind(ctx: Context, x: Value, weight: Parameter, name: str, *, strided: bool) -> Value:
    """Product and reduce-scatter in one function, whose backward gathers into the second shared buffer.

    It keeps its input as it came, and copies what is strided once for each product. The input's gradient comes first.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    copied = tape.new(shape, dtype, name + " input") if strided else None
    out = tape.value((ctx.tokens, weight.shape[0]), dtype, name)
    del copied
    if scatters(ctx.setting):
        partial, out = out, tape.value((ctx.residual_tokens, weight.shape[0]), dtype, name + " reduce-scatter")
        del partial

    def run(grad: Storage) -> list[Storage | None]:
        gx = tape.new(shape, dtype, name + " dX")
        copied = tape.new(shape, dtype, name + " input") if strided else None
        gw = tape.new(weight.shape, weight.dtype, name + " dW")
        del copied
        return [gx, gw]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=(x.storage,))
