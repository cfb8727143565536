"""Cross attention of a decoder's layer (modeling_t5.py, T5LayerCrossAttention; modeling_bart.py, BartDecoderLayer)."""

from __future__ import annotations

from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, dropout
from memcheck.autograd.modules import normalise
from memcheck.autograd.shared import shared
from memcheck.autograd.tensor import Dim, Storage, Value
from memcheck.frameworks.transformers.attention import attention
from memcheck.models.types import Block, CrossAttention


def cross_half(ctx: Context, block: Block, cross: CrossAttention, x: Value) -> Value:
    """Attention to the encoder's output, between the layer's own attention and its feed-forward network."""
    h = x.view(*x.shape) if block.post_norm else normalise(ctx, cross.norm, x)
    argument = h if block.inner_dropout else None
    h = attention(ctx, cross.attention, h, x.dtype)
    h = dropout(ctx.tape, normalise(ctx, cross.output_norm, h), block.dropout)
    del argument
    x = add(ctx.tape, x, h, "residual")
    return normalise(ctx, cross.norm, x) if block.post_norm else x


def encoded(ctx: Context) -> tuple[Value, int]:
    """The encoder's output, one value for all that read it, and its rows of each sample."""
    s = ctx.setting
    rows = Dim(s.encoded, "E")
    if ctx.encoded is None:
        shape = (Dim(s.batch * s.encoded, "E"), ctx.hidden)
        dtype = s.encoded_dtype or s.stream or s.params
        ctx.encoded = shared(ctx.tape, shape, dtype, wants=s.encoded_grad, starts=s.gathers)
    return ctx.encoded, rows


def crossing_mask(ctx: Context, dtype: str, *, additive: bool) -> Storage | None:
    """What a kernel keeps of the mask over the rows of pictures, ``additive`` and in the model's own dtype, or of
    padded words, which is boolean.
    """
    rows = ctx.setting.encoded
    wide = -(-rows // MASK_ALIGNMENT) * MASK_ALIGNMENT
    if additive and ctx.setting.autocast is None and wide == rows:
        return None
    return ctx.tape.new((ctx.batch, 1, ctx.sequence, wide), dtype, "mask of encoded rows")
