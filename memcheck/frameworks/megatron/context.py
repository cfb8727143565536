"""Attention over sequences that the context group has cut: ring (p2p), all-gather, all-to-all, all-to-all in a ring.

Source: TransformerEngine ``pytorch/attention/dot_product_attention/context_parallel.py`` (AttnFuncWithCPAndKVP2P,
AttnFuncWithCPAndKVAllGather, AttnFuncWithCPAndQKVOA2A, flash_attn_a2a_communicate). The rank with the most work is
counted: the last one, whose queries see every key, so that no step of the ring is a half.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.record import Record

KINDS = ("p2p", "all_gather", "a2a", "a2a+p2p")


class AttentionWidths(Record):
    """Widths and heads of one attention, and whether its kernel writes dK and dV per query head first."""

    heads: int
    qk_dim: int
    v_dim: int
    expands: bool


def exchange(setting: Setting) -> str:
    """``cp_comm_type``; nothing without context parallelism.

    Raises:
        UnsupportedError: layers exchange in different ways; the ledger prices one layer for all.
    """
    if setting.context == 1:
        return ""
    stated = setting.option("cp_comm_type", "p2p")
    kinds = {str(k) for k in stated} if isinstance(stated, (list, tuple)) else {str(stated)}
    if len(kinds) == 1:
        return kinds.pop()
    raise UnsupportedError(
        "cp_comm_type differs between layers, and memcheck prices one exchange for all of them",
        "state one of p2p, all_gather, a2a or a2a+p2p; p2p needs the most memory",
        "/training/options/cp_comm_type",
    )


def ring_ways(setting: Setting) -> int:
    """Ranks on one ring: the whole context group, or the second of ``hierarchical_context_parallel_sizes``."""
    if exchange(setting) != "a2a+p2p":
        return setting.context
    stated = setting.option("hierarchical_context_parallel_sizes")
    sizes = [n for n in stated if isinstance(n, int)] if isinstance(stated, (list, tuple)) else []
    if isinstance(stated, (list, tuple)) and len(sizes) != len(stated):
        raise UnsupportedError(
            "hierarchical_context_parallel_sizes is no list of whole numbers",
            "write the sizes from the inner group to the outer one: [2, 2]",
            "/training/options/hierarchical_context_parallel_sizes",
        )
    return prod(sizes[1:]) if sizes else setting.context


def context_attention(ctx: Context, sides: AttentionWidths, q: Value, key: Value, value: Value) -> Value:
    """Attention of this rank's queries over the whole sequence."""
    kind = exchange(ctx.setting)
    if kind == "all_gather":
        return _gathered(ctx, sides, q, key, value)
    if kind == "p2p":
        return _ring(ctx, sides, q, key, value)
    if not kind:
        return _whole(ctx, sides, q, key, value)
    q, key, value = _to_heads(ctx.tape, (q, key, value))
    inner = _ring if kind == "a2a+p2p" else _whole
    out = inner(ctx, sides, q, key, value)
    del q, key, value
    return _to_tokens(ctx.tape, out)


def _gradients(tape: Tape, sides: AttentionWidths, q: Value, key: Value, value: Value) -> list[Storage]:
    """One call of the backward kernel: dQ is accumulated in fp32 (cuDNN's workspace, FlashAttention's dq_accum)."""
    rows = q.shape[0]
    accumulator = tape.new((rows, sides.heads * sides.qk_dim), "fp32", "dQ accumulator")
    found = [tape.new(t.shape, t.dtype, "attention backward") for t in (q, key, value)]
    if sides.expands:
        wide = [
            tape.new((key.shape[0], sides.heads * d), key.dtype, "expanded dK, dV") for d in (sides.qk_dim, sides.v_dim)
        ]
        del wide
    del accumulator
    return found


def _whole(ctx: Context, sides: AttentionWidths, q: Value, key: Value, value: Value) -> Value:
    """Whole sequences, a share of the heads (their sizes are those of a share of the sequence)."""
    tape = ctx.tape
    out = tape.value((q.shape[0], sides.heads * sides.v_dim), q.dtype, "attention output")
    stats = tape.new((q.shape[0], sides.heads), "fp32", "softmax statistics")
    kept = (q.storage, key.storage, value.storage, out.storage, stats)
    plain = tuple(Value(None, t.shape, t.dtype) for t in (q, key, value))

    def run(grad: Storage) -> list[Storage | None]:
        return list(_gradients(tape, sides, *plain))

    return tape.record(out, (q, key, value), run, saves=kept)


def _ring(ctx: Context, sides: AttentionWidths, q: Value, key: Value, value: Value) -> Value:
    """Every step has its own k and v buffer, output and statistics; q, the last buffer and the sums are kept."""
    tape, steps = ctx.tape, ring_ways(ctx.setting)
    rows, both = q.shape[0], key.numel + value.numel
    wide = (rows, sides.heads * sides.v_dim)
    buffers = [tape.new((both,), key.dtype, "k and v ring buffer") for _ in range(steps)]
    outs = [tape.new(wide, q.dtype, "attention output of a ring step") for _ in range(steps)]
    step_stats = [tape.new((rows, sides.heads), "fp32", "softmax statistics of a ring step") for _ in range(steps)]
    stats = tape.new((rows, sides.heads), "fp32", "softmax statistics")
    out = tape.value(wide, q.dtype, "attention output")
    kept = (q.storage, buffers[-1], out.storage, stats)
    dtype = key.dtype
    plain = tuple(Value(None, t.shape, t.dtype) for t in (q, key, value))
    del buffers, outs, step_stats

    def run(grad: Storage) -> list[Storage | None]:
        dq = tape.new(plain[0].shape, plain[0].dtype, "dQ")
        # two buffers of (k, v) and (dK, dV); the gradients that leave are views of one of them
        here = tape.new((2 * both,), dtype, "ring buffer of k, v and their gradients")
        there = tape.new((2 * both,), dtype, "ring buffer of k, v and their gradients")
        step = _gradients(tape, sides, *plain)
        del step, here
        return [dq, there, there]

    return tape.record(out, (q, key, value), run, saves=kept)


def _gathered(ctx: Context, sides: AttentionWidths, q: Value, key: Value, value: Value) -> Value:
    """k and v of the whole sequence, put in order; two halves of the queries; the local q, k, v and output are kept."""
    tape, ways = ctx.tape, ctx.setting.context
    rows = q.shape[0]
    wide = (rows, sides.heads * sides.v_dim)
    stats = [tape.new((rows, sides.heads), "fp32", "softmax statistics")]
    everything = _in_order(tape, ways, key, value)
    out = tape.value(wide, q.dtype, "attention output")
    others = [tape.new(wide, q.dtype, "attention output of both halves") for _ in range(2)]
    del everything, others
    kept = (q.storage, key.storage, value.storage, out.storage, *stats)
    plain = tuple(Value(None, t.shape, t.dtype) for t in (q, key, value))
    del stats

    def run(grad: Storage) -> list[Storage | None]:
        mine, k, v = plain
        dq = tape.new(mine.shape, mine.dtype, "dQ")
        dk, dv = (tape.new(_times(t.shape, ways), t.dtype, "dK, dV of the whole sequence") for t in (k, v))
        everything = _in_order(tape, ways, k, v)
        half = Value(None, (-(-mine.shape[0] // 2), mine.shape[1]), mine.dtype)
        # the two halves together see (2 ways + 1) / 2 ways of the sequence, and both gradients wait
        seen = [Value(None, (t.shape[0] * ways + -(-t.shape[0] // 2), t.shape[1]), t.dtype) for t in (k, v)]
        steps = _gradients(tape, sides, half, *seen)
        for_first = tape.new(half.shape, half.dtype, "attention backward")
        dk = tape.new(_times(k.shape, ways), k.dtype, "index_select dK")
        dv = tape.new(_times(v.shape, ways), v.dtype, "index_select dV")
        results: list[Storage | None] = [dq]
        results += [tape.new(t.shape, t.dtype, "reduce-scatter dK, dV") for t in (k, v)]
        del dk, dv, everything, steps, for_first
        return results

    return tape.record(out, (q, key, value), run, saves=kept)


def _times(shape: tuple[int, ...], ways: int) -> tuple[int, ...]:
    return (shape[0] * ways, *shape[1:])


def _in_order(tape: Tape, ways: int, key: Value, value: Value) -> list[Storage]:
    """Both are gathered before either is reordered, which copies it."""
    raw = [tape.new(_times(t.shape, ways), t.dtype, "all-gather k and v") for t in (key, value)]
    found: list[Storage] = []
    for t in (key, value):
        found.append(tape.new(_times(t.shape, ways), t.dtype, "index_select k and v"))
        raw.pop(0)
    return found


def _to_heads(tape: Tape, inputs: tuple[Value, ...]) -> list[Value]:
    """All-to-all before attention: permuted copies wait for the last exchange; each result is put in order, a copy."""
    permuted = [tape.new(t.shape, t.dtype, "permute for all-to-all") for t in inputs]
    found: list[Value] = []
    for t in inputs:
        received = tape.new(t.shape, t.dtype, "all-to-all over the context group")
        out = tape.value(t.shape, t.dtype, "index_select after all-to-all")
        del received
        found.append(tape.record(out, (t,), _back(tape, t)))
    del permuted
    return found


def _to_tokens(tape: Tape, x: Value) -> Value:
    """All-to-all after attention: ordered copy, exchange, permuted copy."""
    ordered = tape.new(x.shape, x.dtype, "index_select for all-to-all")
    received = tape.new(x.shape, x.dtype, "all-to-all over the context group")
    out = tape.value(x.shape, x.dtype, "permute after all-to-all")
    del ordered, received
    return tape.record(out, (x,), _back(tape, x))


def _back(tape: Tape, x: Value) -> Callable[[Storage], list[Storage | None]]:
    shape, dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        ordered = tape.new(shape, dtype, "reorder for all-to-all")
        received = tape.new(shape, dtype, "all-to-all backward")
        out = tape.new(shape, dtype, "reorder after all-to-all")
        del ordered, received
        return [out]

    return run
