"""flash-linear-attention's kernels of a gated delta net: what each keeps, and what its backward makes.

Sources: flash-linear-attention 0.5 ``modules/conv/triton/ops.py`` (CausalConv1dFunction, causal_conv1d_bwd),
``modules/l2norm.py`` (L2NormFunction), ``ops/gated_delta_rule/chunk.py`` (ChunkGatedDeltaRuleFunction,
chunk_gated_delta_rule_bwd), ``chunk_fwd.py``, ``wy_fast.py``, ``ops/common/chunk_delta_h.py``, ``chunk_o.py``.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Value
from memcheck.record import Record

CHUNK = 64
"""Tokens of a chunk: of the rule, and of the convolution's backward."""


class Heads(Record):
    """The heads of one delta net on this rank. Queries and keys have been repeated to as many as the values have."""

    number: int
    key: int
    """Width of one head's queries and keys."""
    value: int


def chunks(ctx: Context, ways: int) -> int:
    """Chunks of all sequences of this micro-batch. ``ways``: context ranks over which these are cut outside."""
    return ctx.batch * -(-ctx.sequence * ways // CHUNK)


def convolution(ctx: Context, x: Value, weight: Parameter, ways: int = 1) -> Value:
    """Convolution and SiLU: keeps its input; backward convolves it again, and sums the weight over chunks in fp32.

    ``ways``: context ranks, each of which copies its channels out of the weight.
    """
    tape = ctx.tape
    own = (weight.shape[0] // ways, *weight.shape[1:])
    local = tape.new(own, weight.dtype, "conv1d weight of own heads") if ways > 1 else None
    out = tape.value(x.shape, x.dtype, "causal_conv1d")
    shape, dtype, pieces = x.shape, x.dtype, (chunks(ctx, ways), *own)

    def run(grad: Storage) -> list[Storage | None]:
        again = tape.new(shape, dtype, "causal_conv1d again")
        dx = tape.new(shape, dtype, "causal_conv1d backward")
        parts = tape.new(pieces, "fp32", "causal_conv1d dW of chunks")
        total = tape.new(own, "fp32", "causal_conv1d dW")
        del parts
        dw = tape.new(weight.shape, weight.dtype, "causal_conv1d dW")
        del total, again
        return [dx, dw if weight.requires_grad else None]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=(x.storage, local))


def l2norm(ctx: Context, x: Value, heads: int) -> Value:
    """Vectors of length one: keeps its output and a number of each row."""
    tape = ctx.tape
    out = tape.value(x.shape, x.dtype, "l2norm")
    kept = (out.storage, tape.new((x.shape[0], heads), "fp32", "l2norm rstd"))
    return operator(tape, out, x, "l2norm backward", saves=kept)


def gated_delta_rule(
    ctx: Context, heads: Heads, inputs: tuple[Value, Value, Value, Value, Value], ways: int = 1
) -> Value:
    """The chunked rule of queries, keys, values, decay (fp32) and beta: [tokens, heads * value].

    Kept: its inputs, the decay summed within chunks instead of the decay, and the inverse of each chunk. Backward makes
    the states between chunks again, and their gradients.
    """
    tape = ctx.tape
    q, k, v, _, beta = inputs
    rows, dtype = q.shape[0], q.dtype
    wide, narrow, each = (rows, heads.number * heads.key), (rows, heads.number * heads.value), (rows, heads.number)
    between = (chunks(ctx, ways), heads.number, heads.key, heads.value)
    summed = tape.new(each, "fp32", "decay summed in chunks")
    inverses = tape.new((rows, heads.number, CHUNK), dtype, "inverses of chunks")
    made = [tape.new(wide, dtype, "w"), tape.new(narrow, dtype, "u")]
    made += [tape.new(between, dtype, "states of chunks"), tape.new(narrow, dtype, "new values")]
    out = tape.value(narrow, dtype, "delta rule")
    del made
    kept = (q.storage, k.storage, v.storage, beta.storage, summed, inverses)
    del summed, inverses

    def run(grad: Storage) -> list[Storage | None]:
        again = [tape.new(wide, dtype, "w"), tape.new(narrow, dtype, "u")]
        again += [tape.new(between, dtype, "states of chunks"), tape.new(narrow, dtype, "new values")]
        local = tape.new(narrow, dtype, "dv in chunks")
        again.append(tape.new(between, dtype, "gradients of states"))
        dv = tape.new(narrow, dtype, "dv")
        del local
        dq, dk = tape.new(wide, dtype, "dq"), tape.new(wide, dtype, "dk")
        dg = tape.new(each, "fp32", "dg")
        again.append(tape.new(wide, dtype, "dw"))
        dg = tape.new(each, "fp32", "dg")
        again.append(tape.new(wide, dtype, "dk of w"))
        values = tape.new(narrow, dtype, "dv of w")
        again.append(tape.new(each, "fp32", "dg of w"))
        db = tape.new(each, dtype, "dbeta")
        del dv
        dg = tape.new(each, "fp32", "dg summed")
        del again
        return [dq, dk, values, dg, db]

    return tape.record(out, inputs, run, saves=kept)
