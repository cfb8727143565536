"""Attention over sequences that the context group has cut: ring (p2p), all-gather, all-to-all, all-to-all in a ring.

Source: TransformerEngine ``pytorch/attention/dot_product_attention/context_parallel.py`` (AttnFuncWithCPAndKVP2P,
AttnFuncWithCPAndKVAllGather, AttnFuncWithCPAndQKVOA2A, flash_attn_a2a_communicate). The rank with the most work is
counted: the last one, whose queries see every key, so that no step of the ring is a half.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div
from memcheck.errors import UnsupportedError
from memcheck.record import Record

KINDS = ("p2p", "all_gather", "a2a", "a2a+p2p")


class AttentionWidths(Record):
    """Widths and heads of one attention, and whether its kernel writes dK and dV per query head first."""

    heads: int
    """Query heads on this rank."""
    qk_dim: int
    """Dimensions of a head of queries and keys."""
    v_dim: int
    """Dimensions of a head of values."""
    expands: bool
    """The kernel writes dK and dV for each query head before it sums them over heads that share a key."""


def exchange(setting: Setting) -> str:
    """Return the kind of exchange of context parallelism (``cp_comm_type``); empty without context parallelism.

    Raises:
        UnsupportedError: the layers exchange in different ways; one layer is estimated for all of them.
    """
    if setting.context_parallel == 1:
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


def ring_ranks(setting: Setting) -> int:
    """Return the number of ranks on one ring: the context group, or its outer group under ``a2a+p2p``.

    The outer sizes are those of ``hierarchical_context_parallel_sizes`` after the first.
    """
    if exchange(setting) != "a2a+p2p":
        return setting.context_parallel
    stated = setting.option("hierarchical_context_parallel_sizes")
    sizes = [n for n in stated if isinstance(n, int)] if isinstance(stated, (list, tuple)) else []
    if isinstance(stated, (list, tuple)) and len(sizes) != len(stated):
        raise UnsupportedError(
            "hierarchical_context_parallel_sizes is no list of whole numbers",
            "write the sizes from the inner group to the outer one: [2, 2]",
            "/training/options/hierarchical_context_parallel_sizes",
        )
    return prod(sizes[1:]) if sizes else setting.context_parallel


def context_attention(ctx: Context, widths: AttentionWidths, query: Value, key: Value, value: Value) -> Value:
    """Compute the attention of this rank's queries over the whole sequence under context parallelism.

    ``query``, ``key``, ``value``: this rank's tokens, [tokens, heads * head width]. ``widths``: number of heads and
    their widths. ``cp_comm_type`` selects the exchange. Returns [tokens, heads * v_dim].
    """
    kind = exchange(ctx.setting)
    if kind == "all_gather":
        return _all_gather_attention(ctx, widths, query, key, value)
    if kind == "p2p":
        return _ring_attention(ctx, widths, query, key, value)
    if not kind:
        return _full_sequence_attention(ctx, widths, query, key, value)
    query, key, value = _to_heads(ctx.tape, (query, key, value))
    attend = _ring_attention if kind == "a2a+p2p" else _full_sequence_attention
    out = attend(ctx, widths, query, key, value)
    del query, key, value
    return _to_tokens(ctx.tape, out)


def _attention_backward(tape: Tape, widths: AttentionWidths, query: Value, key: Value, value: Value) -> list[Storage]:
    """Allocate the tensors of one call of the attention backward kernel, and return dQ, dK and dV.

    ``query``, ``key``, ``value``: give their shapes and dtypes. dQ is accumulated in fp32 (cuDNN's workspace,
    FlashAttention's dq_accum). If ``widths.expands``, the kernel writes dK and dV for each query head before it sums
    them over the heads that share a key.
    """
    tokens = query.shape[0]
    accumulator = tape.new((tokens, widths.heads * widths.qk_dim), "fp32", "dQ accumulator")
    gradients = [tape.new(t.shape, t.dtype, "attention backward") for t in (query, key, value)]
    if widths.expands:
        expanded = [
            tape.new((key.shape[0], widths.heads * head_dim), key.dtype, "expanded dK, dV")
            for head_dim in (widths.qk_dim, widths.v_dim)
        ]
        del expanded
    del accumulator
    return gradients


def _full_sequence_attention(ctx: Context, widths: AttentionWidths, query: Value, key: Value, value: Value) -> Value:
    """Compute attention over the whole sequence with one kernel: without context ranks, or after an all-to-all.

    After an all-to-all the rank has 1/cp of the heads for all tokens: as many elements as all heads for 1/cp of the
    tokens, so that the shapes of ``query``, ``key`` and ``value`` are used unchanged. Saves q, k, v, the output and
    softmax statistics.
    """
    tape = ctx.tape
    out = tape.value((query.shape[0], widths.heads * widths.v_dim), query.dtype, "attention output")
    stats = tape.new((query.shape[0], widths.heads), "fp32", "softmax statistics")
    saved = (query.storage, key.storage, value.storage, out.storage, stats)
    qkv_shapes = tuple(Value(None, t.shape, t.dtype) for t in (query, key, value))

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dQ, dK and dV of one kernel."""
        return list(_attention_backward(tape, widths, *qkv_shapes))

    return tape.record(out, (query, key, value), run, saves=saved)


def _ring_attention(ctx: Context, widths: AttentionWidths, query: Value, key: Value, value: Value) -> Value:
    """Compute ring attention (``cp_comm_type: p2p``), in which k and v of all ranks pass by: [tokens, heads * v_dim].

    Each step allocates a buffer of k and v, an output and statistics. Saves q, the last buffer of k and v, the summed
    output and its statistics. Source: TransformerEngine context_parallel.py, AttnFuncWithCPAndKVP2P.
    """
    tape, steps = ctx.tape, ring_ranks(ctx.setting)
    tokens, kv_elements = query.shape[0], key.numel + value.numel
    output_shape = (tokens, widths.heads * widths.v_dim)
    buffers = [tape.new((kv_elements,), key.dtype, "k and v ring buffer") for _ in range(steps)]
    step_outputs = [tape.new(output_shape, query.dtype, "attention output of a ring step") for _ in range(steps)]
    step_stats = [tape.new((tokens, widths.heads), "fp32", "softmax statistics of a ring step") for _ in range(steps)]
    stats = tape.new((tokens, widths.heads), "fp32", "softmax statistics")
    out = tape.value(output_shape, query.dtype, "attention output")
    saved = (query.storage, buffers[-1], out.storage, stats)
    dtype = key.dtype
    qkv_shapes = tuple(Value(None, t.shape, t.dtype) for t in (query, key, value))
    del buffers, step_outputs, step_stats

    def run(grad: Storage) -> list[Storage | None]:
        """Backward ring: dQ stays here, while two buffers of k, v, dK and dV travel; returns views of the last
        received.
        """
        dq = tape.new(qkv_shapes[0].shape, qkv_shapes[0].dtype, "dQ")
        # two buffers of (k, v) and (dK, dV); the gradients that leave are views of one of them
        send_buffer = tape.new((2 * kv_elements,), dtype, "ring buffer of k, v and their gradients")
        receive_buffer = tape.new((2 * kv_elements,), dtype, "ring buffer of k, v and their gradients")
        step_gradients = _attention_backward(tape, widths, *qkv_shapes)
        del step_gradients, send_buffer
        return [dq, receive_buffer, receive_buffer]

    return tape.record(out, (query, key, value), run, saves=saved)


def _all_gather_attention(ctx: Context, widths: AttentionWidths, query: Value, key: Value, value: Value) -> Value:
    """Compute attention over gathered keys and values (``cp_comm_type: all_gather``): [tokens, heads * v_dim].

    For balance under the causal mask each context rank has one early and one late chunk of the sequence, and runs the
    kernel once for each. Saves the local query, key, value and the output; backward gathers keys and values again.
    """
    tape, ranks = ctx.tape, ctx.setting.context_parallel
    tokens = query.shape[0]
    output_shape = (tokens, widths.heads * widths.v_dim)
    stats = [tape.new((tokens, widths.heads), "fp32", "softmax statistics")]
    gathered_kv = _gather_kv(tape, ranks, key, value)
    out = tape.value(output_shape, query.dtype, "attention output")
    half_outputs = [tape.new(output_shape, query.dtype, "attention output of both halves") for _ in range(2)]
    del gathered_kv, half_outputs
    saved = (query.storage, key.storage, value.storage, out.storage, *stats)
    qkv_shapes = tuple(Value(None, t.shape, t.dtype) for t in (query, key, value))
    del stats

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: gather k and v again, run the kernel for both halves of the queries, reduce-scatter dK and dV."""
        local_q, k, v = qkv_shapes
        dq = tape.new(local_q.shape, local_q.dtype, "dQ")
        dk, dv = (tape.new(_gathered_shape(t.shape, ranks), t.dtype, "dK, dV of the whole sequence") for t in (k, v))
        gathered_kv = _gather_kv(tape, ranks, k, v)
        half = Value(None, (ceil_div(local_q.shape[0], 2), local_q.shape[1]), local_q.dtype)
        # under the causal mask both halves together read half a rank's tokens more than the whole sequence
        visible_kv = [Value(None, (t.shape[0] * ranks + ceil_div(t.shape[0], 2), t.shape[1]), t.dtype) for t in (k, v)]
        half_gradients = _attention_backward(tape, widths, half, *visible_kv)
        first_half_dq = tape.new(half.shape, half.dtype, "attention backward")
        dk = tape.new(_gathered_shape(k.shape, ranks), k.dtype, "index_select dK")
        dv = tape.new(_gathered_shape(v.shape, ranks), v.dtype, "index_select dV")
        results: list[Storage | None] = [dq]
        results += [tape.new(t.shape, t.dtype, "reduce-scatter dK, dV") for t in (k, v)]
        del dk, dv, gathered_kv, half_gradients, first_half_dq
        return results

    return tape.record(out, (query, key, value), run, saves=saved)


def _gathered_shape(shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Return the shape of a tensor after all ``ranks`` context ranks have gathered their tokens."""
    return (shape[0] * ranks, *shape[1:])


def _gather_kv(tape: Tape, ranks: int, key: Value, value: Value) -> list[Storage]:
    """Gather keys and values of all ranks, then copy each into sequence order; return the two copies."""
    gathered = [tape.new(_gathered_shape(t.shape, ranks), t.dtype, "all-gather k and v") for t in (key, value)]
    ordered: list[Storage] = []
    for t in (key, value):
        ordered.append(tape.new(_gathered_shape(t.shape, ranks), t.dtype, "index_select k and v"))
        gathered.pop(0)
    return ordered


def _to_heads(tape: Tape, inputs: tuple[Value, ...]) -> list[Value]:
    """Exchange tokens for heads before attention: an all-to-all, then a copy in sequence order for each of q, k, v.

    The permuted copies of all three live until the last exchange.
    """
    permuted = [tape.new(t.shape, t.dtype, "permute for all-to-all") for t in inputs]
    exchanged: list[Value] = []
    for t in inputs:
        received = tape.new(t.shape, t.dtype, "all-to-all over the context group")
        out = tape.value(t.shape, t.dtype, "index_select after all-to-all")
        del received
        exchanged.append(tape.record(out, (t,), _all_to_all_backward(tape, t)))
    del permuted
    return exchanged


def _to_tokens(tape: Tape, x: Value) -> Value:
    """Exchange heads for tokens after attention: an ordered copy, the all-to-all and a permuted copy."""
    ordered = tape.new(x.shape, x.dtype, "index_select for all-to-all")
    received = tape.new(x.shape, x.dtype, "all-to-all over the context group")
    out = tape.value(x.shape, x.dtype, "permute after all-to-all")
    del ordered, received
    return tape.record(out, (x,), _all_to_all_backward(tape, x))


def _all_to_all_backward(tape: Tape, x: Value) -> Callable[[Storage], list[Storage | None]]:
    """Return the backward of an exchange of ``x``: two temporaries and the gradient, each of x's size."""
    shape, dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: reorder, exchange the gradient with an all-to-all, and reorder again."""
        ordered = tape.new(shape, dtype, "reorder for all-to-all")
        received = tape.new(shape, dtype, "all-to-all backward")
        out = tape.new(shape, dtype, "reorder after all-to-all")
        del ordered, received
        return [out]

    return run
