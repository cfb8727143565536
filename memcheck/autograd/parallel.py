"""The edges of tensor parallelism: gather and reduce activations, and their gradients."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import GRAD_UNCHANGED, operator
from memcheck.autograd.tensor import Storage, Value


def enter_tensor_parallel(ctx: Context, x: Value) -> Value:
    """Return the input of column-parallel layers: gathered over the sequence (SP), or the replicated tensor itself.

    Backward: reduce-scatter (SP), or an all-reduce into a new tensor (functional collectives do not work in place).
    """
    tape = ctx.tape
    if ctx.tp == 1:
        return x
    shape, dtype = x.shape, x.dtype
    if not ctx.setting.sequence_parallel:
        return operator(tape, Value(x.storage, shape, dtype), x, "reduce input gradient")
    out = tape.value((ctx.tokens, *shape[1:]), dtype, "all-gather")
    if _cat_after_gather(ctx):
        out = tape.value(out.shape, dtype, "cat gathered sequence")
    return tape.record(out, (x,), lambda grad: [_reduce_scatter(ctx, grad, shape, "reduce input gradient")])


def leave_tensor_parallel(ctx: Context, x: Value) -> Value:
    """Return the output of a row-parallel layer: reduce-scattered (SP), or all-reduced into a new tensor.

    ``x``: the partial sums, [tokens, ...]. Under sequence parallelism the result is [tokens / tp, ...].
    """
    tape = ctx.tape
    if ctx.tp == 1:
        return x
    shape, dtype = x.shape, x.dtype
    if not ctx.setting.sequence_parallel:
        return operator(tape, tape.value(shape, dtype, "all-reduce"), x, GRAD_UNCHANGED)
    shard_shape = (ctx.residual_tokens, *shape[1:])
    out = Value(_reduce_scatter(ctx, x, shard_shape, "reduce-scatter"), shard_shape, dtype)
    if not _cat_after_gather(ctx):
        return operator(tape, out, x, "all-gather")
    return operator(tape, out, x, "cat gathered sequence", temporaries=[(shape, dtype, "all-gather")])


def _reduce_scatter(ctx: Context, x: Value | Storage, shard_shape: tuple[int, ...], label: str) -> Storage:
    """Reduce-scatter ``x`` into a tensor of ``shard_shape``, and return its storage.

    Functional collectives scatter along dim 0: chunks of a sequence in dimension 1 are first concatenated along it.

    torch/distributed/_functional_collectives.py, reduce_scatter_tensor (``torch.cat(torch.chunk(...))``).
    """
    tape = ctx.tape
    copied = tape.new(x.shape, x.dtype, "cat chunks") if ctx.setting.style.layout == "batch-first" else None
    out = tape.output("reduce-scatter", shard_shape, x.dtype, label)
    del copied
    return out


def _cat_after_gather(ctx: Context) -> bool:
    """Whether all_gather_tensor along dim 1 copies the chunks into one tensor: unless the dimensions before are 1."""
    return ctx.setting.style.layout == "batch-first" and ctx.setting.batch > 1
