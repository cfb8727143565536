"""Rotary position embeddings, in the forms in which transformers writes them, and the tables that a model makes.

cos and sin are made once per model, need no gradient and are counted there; the rotations keep nothing else. Each form
is replayed as one operation with the temporaries of its pieces (``apply_rotary_pos_emb`` of the model files).
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.kernels import rotate_complex, rotate_half
from memcheck.autograd.operator import cast, cat, slices
from memcheck.autograd.tensor import ITEM_BYTES, Storage, Value, rounded
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, ModernBertDecoder


def rotary_width(architecture: Architecture) -> int:
    """Return the number of channels of the rotary tables; 0 without rotary embedding."""
    for block, _ in architecture.blocks:
        if isinstance(block.mixer, Attention) and block.mixer.rotary_dim:
            return block.mixer.rotary_dim
        if isinstance(block.mixer, LatentAttention):
            return block.mixer.qk_rope_head_dim
    return architecture.rotary_dim


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """Return cos and sin, [1, S, rotary_dim] in the stream's dtype, made in each forward (*RotaryEmbedding.forward)."""
    wide = any(wide_width(block) for block, _ in architecture.blocks)
    return tables(architecture, setting, "fp32" if wide else setting.param_dtype)


def wide_width(block: Block) -> int:
    """Return the width of the rotary tables that a layer receives in fp32, whatever the dtype of the stream; 0: none.

    OLMo and families with ``pairs-wide`` compute cos and sin in fp32, which FSDP2 then casts for each layer.
    """
    mixer = block.mixer
    if isinstance(mixer, Attention) and mixer.rotation.form in ("half-fp32", "pairs-wide"):
        return mixer.rotary_dim
    return 0


def rotary_caches(architecture: Architecture, sequence: int, layers: int, *, adapted: bool) -> int:
    """No layer holds a table of its own."""
    return 0


def rotary_rows(architecture: Architecture, sequence: int, batch: int) -> int:
    """Rows of each rotary table: one per position, or one per token of the batch (ModernBERT's decoder)."""
    return sequence * batch if isinstance(architecture, ModernBertDecoder) else sequence


def tables(architecture: Architecture, setting: Setting, dtype: str) -> int:
    """Return the bytes of all cos and sin of a model, which has a pair of [positions, width] for each rotary width."""
    widths = architecture.rotary_tables
    if not isinstance(widths, tuple):  # the number of equal pairs
        widths = (rotary_width(architecture),) * widths
    rows = rotary_rows(architecture, setting.sequence, setting.batch)
    cos_bytes = sin_bytes = sum(rounded(rows * width * ITEM_BYTES[dtype]) for width in widths)
    return cos_bytes + sin_bytes


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
