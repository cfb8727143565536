"""Rotary position embeddings, in the forms in which transformers writes them.

cos and sin are made once per model, need no gradient and are counted there; the rotations keep nothing else. Each form
is replayed as one operation with the temporaries of its pieces (``apply_rotary_pos_emb`` of the model files).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, cat
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.models.types import Attention

Pair = tuple[Value, Value]
PLAIN = ("half", "cat", "pairs")
"""Forms that many models share; the others are loaded where a model has them."""


def apply_rotary(ctx: Context, a: Attention, q: Value, k: Value, stream: str) -> Pair:
    """Rotate q, then k; both unrotated tensors live until both are done. ``stream``: dtype of cos and sin."""
    tape, form = ctx.tape, a.rotary_form
    if form == "complex":
        return rotate_complex(tape, q, k)
    if form not in PLAIN:
        from memcheck.frameworks.transformers.rotary_own import rotate_otherwise

        return rotate_otherwise(ctx, a, q, k, stream)
    tables = layer_tables(ctx, a, stream) if form.startswith("pairs") else ()
    return partial(ctx, a, q, stream, tables), partial(ctx, a, k, stream, tables)


def concatenates(a: Attention) -> bool:
    """Whether the rotated part and the rest of each head are put together in a new, contiguous tensor."""
    return 0 < a.rotary_dim < a.head_dim or a.rotary_form == "cat"


def layer_tables(ctx: Context, a: Attention, stream: str) -> tuple[Storage, ...]:
    """``cos.repeat_interleave(2)`` and sin: two tables per layer."""
    shape = (ctx.batch, ctx.sequence, a.rotary_dim)
    return tuple(ctx.tape.new(shape, stream, "repeated rotary table") for _ in range(2))


def partial(ctx: Context, a: Attention, x: Value, stream: str, tables: tuple[Storage, ...]) -> Value:
    """The first ``rotary_dim`` dimensions of each head are rotated, the rest is concatenated after them."""
    tape = ctx.tape
    head_dim, rotary_dim = x.shape[-1], a.rotary_dim
    if not concatenates(a):
        return rotate_half(tape, x, stream, tables)
    shape = x.shape
    from memcheck.autograd.indexing import slices

    turned, rest = slices(tape, x, (*shape[:-1], rotary_dim), (*shape[:-1], head_dim - rotary_dim))
    turned = rotate_half(tape, turned, stream, tables)
    if a.named_rotary:
        ctx.named += [x, turned]
    del x
    if turned.dtype != rest.dtype:  # torch.cat promotes
        rest = cast(tape, rest, turned.dtype)
    return cat(tape, (turned, rest), shape, "cat rotary")


def rotate_half(tape: Tape, x: Value, stream: str, tables: tuple[Storage, ...] = (), *, holds: bool = False) -> Value:
    """Multiply by cos, the turned halves by sin, and add. ``tables``: kept when the layer made its own. ``holds``: the
    turned halves have a variable until the sum is there.
    """
    shape, dtype = x.shape, x.dtype
    half = (*shape[:-1], shape[-1] // 2)
    wide = promote(dtype, stream)
    wants = x.origin is not None
    with_cos = tape.value(shape, wide, "q * cos")
    negated = tape.value(half, dtype, "neg")
    turned = tape.value(shape, dtype, "rotate half")
    del negated
    with_sin = tape.value(shape, wide, "rotate half * sin")
    held = turned if holds else None
    del turned
    out = tape.value(shape, wide, "rotary embedding")
    del with_cos, with_sin, held

    def run(grad: Storage) -> list[Storage | None]:
        through_sin = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_sin = tape.new(shape, dtype, "to backward")
        halves = tape.new(half, dtype, "neg backward")
        first = tape.new(shape, dtype, "slice backward")
        del halves
        second = tape.new(shape, dtype, "slice backward")
        del through_sin
        summed = tape.new(shape, dtype, "add gradients") if tape.subclass else first
        del first, second
        through_cos = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_cos = tape.new(shape, dtype, "to backward")
        total = tape.new(shape, dtype, "add gradients") if tape.subclass else through_cos
        del summed, through_cos
        return [total if wants else None]

    return tape.record(out, (x,), run, saves=tables)


def rotate_complex(tape: Tape, q: Value, k: Value, rows: Storage | None = None) -> Pair:
    """DeepSeek V2, Llama 4, torchtitan: fp32 copies read as complex numbers, times the table, back to q's dtype.

    ``rows``: the table's rows, kept when the layer picked its own. Their conjugates are made for each backward.
    """
    wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    turned_q, turned_k = _times_complex(tape, wide_q, rows), _times_complex(tape, wide_k, rows)
    return cast(tape, turned_q, q.dtype), cast(tape, turned_k, k.dtype)


def _times_complex(tape: Tape, wide: Value, rows: Storage | None) -> Value:
    shape = wide.shape
    turned = tape.value(shape, "fp32", "x * freqs_cis")
    conjugates = rows.shape if rows is not None else None
    return operator(
        tape,
        turned,
        wide,
        (shape, "fp32", "mul backward"),
        saves=(rows,),
        temporaries=[(conjugates or shape, "fp32", "clone")],
    )
