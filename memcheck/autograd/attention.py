"""Attention kernels, the products that others are made of, rotations, ring attention of context parallelism."""

from __future__ import annotations

from memcheck.autograd.operator import cast, copy, factors, operator, unary
from memcheck.autograd.tensor import Storage, Tape, Value, promote

Copied = tuple[bool, bool, bool]
"""Whether q, k and v, in this order, are copied."""

MASK_ALIGNMENT = 8
"""Elements to a multiple of which the memory-efficient kernel wants a mask's rows padded."""


def flash(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    v_dim: int,
    *,
    label: str = "flash attention",
    extra: Storage | None = None,
    ring: int = 1,
) -> Value:
    """Run FlashAttention-2 (aten _scaled_dot_product_flash_attention), which saves q, k, v, output and fp32 logsumexp.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]; the result has ``v_dim`` elements per head. Grouped heads
    are not repeated. The memory-efficient kernel saves the same five tensors and its mask (``extra``). ``ring``: ranks
    of a context-parallel group, which send keys and values in a ring.
    """
    out_shape = (*q.shape[:-1], v_dim)
    ring_buffers = None
    if ring > 1:
        ring_buffers = forward_buffers(tape, q, k, v, ring, v_dim)
    out = Value(tape.output("attention", out_shape, q.dtype, label), out_shape, q.dtype)
    lse = tape.output("attention", q.shape[:-1], "fp32", label + " logsumexp")
    del ring_buffers
    saved = (q.storage, k.storage, v.storage, out.storage, lse, extra)
    bare_q, bare_k, bare_v = (Value(None, t.shape, t.dtype) for t in (q, k, v))
    grad_specs = [(t.shape, t.dtype) if t.origin is not None else None for t in (q, k, v)]

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: allocate dQ, dK and dV, with the buffers of a ring between ranks."""
        ring_buffers = backward_buffers(tape, bare_q, bare_k, bare_v, ring) if ring > 1 else None
        gradients = [tape.new(spec[0], spec[1], label + " backward") if spec else None for spec in grad_specs]
        del ring_buffers
        return gradients

    return tape.record(out, (q, k, v), run, saves=saved)


def batched(
    tape: Tape, a: Value, b: Value, shape: tuple[int, ...], label: str, copied: tuple[bool, bool] = (False, False)
) -> Value:
    """Compute ``torch.matmul`` of two activations (bmm), which saves both operands after autocast's casts.

    ``shape``: of the result. ``copied``: whether matmul copies ``a``, and ``b``, to fold batch and heads into one
    dimension. A copy has no other reference.
    """
    if tape.autocast:
        b = cast(tape, b, tape.autocast)
        a = cast(tape, a, tape.autocast)
    if copied[0]:
        a = copy(tape, a, "contiguous")
    if copied[1]:
        b = copy(tape, b, "contiguous")
    out = Value(tape.output("bmm", shape, a.dtype, label), shape, a.dtype)
    return operator(tape, out, (a, b), label + " backward", saves=factors(a, b))


def softmax(tape: Tape, x: Value, dtype: str | None = None) -> Value:
    """Compute ``softmax(x, dtype=...)``, which saves its result. ``dtype``: x is cast to it first; None: no cast."""
    wide = cast(tape, x, dtype) if dtype else x
    del x
    return unary(tape, wide, "softmax")


def forward_buffers(tape: Tape, q: Value, k: Value, v: Value, ranks: int, v_dim: int) -> list[Storage]:
    """Allocate the buffers of ring attention's forward, without its output.

    They are contiguous keys and values, their concatenation, the keys and values of all ranks, and two fp32 outputs
    that are merged. ``ranks``: ranks of the ring. ``v_dim``: width of a head's values.
    """
    buffers = _keys_and_values(tape, k, v, ranks)
    for _ in range(2):
        buffers.append(tape.new((*q.shape[:-1], v_dim), "fp32", "merged output"))
    return buffers


def backward_buffers(tape: Tape, q: Value, k: Value, v: Value, ranks: int) -> list[Storage]:
    """Allocate the buffers of ring attention's backward, without the gradients that it returns.

    They are the keys and values of all ranks, fp32 gradients summed over the ring's steps and of the current step, and
    two fp32 buffers of gradients of keys and values that travel around the ring. ``ranks``: ranks of the ring.
    """
    buffers = _keys_and_values(tape, k, v, ranks)
    for what in ("summed", "this step's"):
        buffers.extend(tape.new(t.shape, "fp32", f"{what} gradient") for t in (q, k, v))
    buffers.extend(tape.new((2, *k.shape), "fp32", "travelling gradients") for _ in range(2))
    return buffers


def _keys_and_values(tape: Tape, k: Value, v: Value, ranks: int) -> list[Storage]:
    """Allocate contiguous local keys and values, both in one tensor, and those gathered from all ``ranks`` ranks."""
    local = [tape.new(t.shape, t.dtype, "contiguous keys and values") for t in (k, v)]
    both = k.numel + v.numel
    joined = tape.new((both,), k.dtype, "keys and values")
    return [*local, joined, tape.new((both * ranks,), k.dtype, "gathered keys and values")]


Pair = tuple[Value, Value]


def rotate_half(tape: Tape, x: Value, stream: str, tables: tuple[Storage, ...] = (), *, holds: bool = False) -> Value:
    """Apply the rotary embedding, x * cos + rotated halves * sin, to queries or keys.

    ``x``: [batch, heads, sequence, rotated dim]; every temporary has its shape. ``stream``: the dtype of cos and sin.
    ``tables``: cos and sin where the graph saves them because the layer made its own. ``holds``: a variable refers to
    the rotated halves until the sum exists. Source: transformers' apply_rotary_pos_emb.
    """
    shape, dtype = x.shape, x.dtype
    half = (*shape[:-1], shape[-1] // 2)
    wide = promote(dtype, stream)
    needs_grad = x.origin is not None
    with_cos = tape.value(shape, wide, "q * cos")
    negated = tape.value(half, dtype, "neg")
    rotated = tape.value(shape, dtype, "rotate half")
    del negated
    with_sin = tape.value(shape, wide, "rotate half * sin")
    held = rotated if holds else None
    del rotated
    out = tape.value(shape, wide, "rotary embedding")
    del with_cos, with_sin, held

    def run(grad: Storage) -> list[Storage | None]:
        """Return the gradient of x: that through sin, rotated back half by half, plus that through cos."""
        through_sin = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_sin = tape.new(shape, dtype, "to backward")
        halves = tape.new(half, dtype, "neg backward")
        first = tape.new(shape, dtype, "slice backward")
        del halves
        second = tape.new(shape, dtype, "slice backward")
        del through_sin
        summed = tape.new(shape, dtype, "add gradients") if tape.dtensor_gradients else first
        del first, second
        through_cos = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_cos = tape.new(shape, dtype, "to backward")
        total = tape.new(shape, dtype, "add gradients") if tape.dtensor_gradients else through_cos
        del summed, through_cos
        return [total if needs_grad else None]

    return tape.record(out, (x,), run, saves=tables)


def rotate_complex(tape: Tape, q: Value, k: Value, rows: Storage | None = None) -> Pair:
    """Apply the rotary embedding with complex numbers, as DeepSeek V2, Llama 4 and torchtitan do.

    fp32 copies of queries and keys are viewed as complex numbers, multiplied by the table and cast back. ``rows``: rows
    of the table that the graph saves because the layer picked its own. Each backward makes their conjugates.
    """
    wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    rotated_q, rotated_k = _times_complex(tape, wide_q, rows), _times_complex(tape, wide_k, rows)
    return cast(tape, rotated_q, q.dtype), cast(tape, rotated_k, k.dtype)


def _times_complex(tape: Tape, wide: Value, rows: Storage | None) -> Value:
    """Multiply by the complex table; backward clones the conjugates of its rows."""
    shape = wide.shape
    rotated = tape.value(shape, "fp32", "x * freqs_cis")
    conjugates = rows.shape if rows is not None else None
    return operator(
        tape,
        rotated,
        wide,
        (shape, "fp32", "mul backward"),
        saves=(rows,),
        temporaries=[(conjugates or shape, "fp32", "clone")],
    )
