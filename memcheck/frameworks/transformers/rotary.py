"""Rotary position embeddings, in the forms in which transformers writes them.

cos and sin are made once per model, need no gradient and are counted there; the rotations keep nothing else. Each form
is replayed as one operation with the temporaries of its pieces (``apply_rotary_pos_emb`` of the model files).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import rotate_complex, rotate_half
from memcheck.autograd.operator import cast, cat, slices
from memcheck.autograd.tensor import Storage, Value
from memcheck.models.types import Attention

Pair = tuple[Value, Value]
PLAIN = ("half", "cat", "pairs")
"""Forms that many models share; the others are loaded where a model has them."""


def apply_rotary(ctx: Context, attention: Attention, q: Value, k: Value, stream: str) -> Pair:
    """Rotate q, then k, as the family does; both unrotated tensors live until both are done.

    ``q``, ``k``: [batch, heads, sequence, head_dim]. ``stream``: dtype of cos and sin.
    """
    tape, form = ctx.tape, attention.rotation.form
    if form == "complex":
        return rotate_complex(tape, q, k)
    if form not in PLAIN:
        from memcheck.frameworks.transformers.rotary_own import rotate_otherwise

        return rotate_otherwise(ctx, attention, q, k, stream)
    tables = layer_tables(ctx, attention, stream) if form.startswith("pairs") else ()
    return partial(ctx, attention, q, stream, tables), partial(ctx, attention, k, stream, tables)


def concatenates(attention: Attention) -> bool:
    """Tell whether ``cat`` joins the rotated part and the rest of each head in a new, contiguous tensor."""
    return 0 < attention.rotary_dim < attention.head_dim or attention.rotation.form == "cat"


def layer_tables(ctx: Context, attention: Attention, stream: str) -> tuple[Storage, ...]:
    """Return ``cos.repeat_interleave(2)`` and sin: two tables per layer."""
    shape = (ctx.batch, ctx.sequence, attention.rotary_dim)
    return tuple(ctx.tape.new(shape, stream, "repeated rotary table") for _ in range(2))


def partial(ctx: Context, attention: Attention, x: Value, stream: str, tables: tuple[Storage, ...]) -> Value:
    """Rotate the first ``rotary_dim`` elements of each head, and concatenate the rest.

    ``x``: [batch, heads, sequence, head_dim]. Only tensors of the rotation have ``rotary_dim`` elements per head.
    """
    tape = ctx.tape
    head_dim, rotary_dim = x.shape[-1], attention.rotary_dim
    if not concatenates(attention):
        return rotate_half(tape, x, stream, tables)
    shape = x.shape

    rotated, unrotated = slices(tape, x, (*shape[:-1], rotary_dim), (*shape[:-1], head_dim - rotary_dim))
    rotated = rotate_half(tape, rotated, stream, tables)
    if attention.rotation.named:
        ctx.attention_locals += [x, rotated]
    del x
    if rotated.dtype != unrotated.dtype:  # torch.cat promotes
        unrotated = cast(tape, unrotated, rotated.dtype)
    return cat(tape, (rotated, unrotated), shape, "cat rotary")
