"""Cross attention of a decoder's layer (modeling_t5.py, T5LayerCrossAttention; modeling_bart.py, BartDecoderLayer)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, dropout
from memcheck.autograd.modules import normalise
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.attention import attention
from memcheck.models.types import Block, CrossAttention


def cross_half(ctx: Context, block: Block, cross: CrossAttention, x: Value) -> Value:
    """Run cross-attention to the encoder's output, between the layer's self-attention and its feed-forward network.

    ``x``: [tokens, hidden]; so is what is returned. With ``post_norm`` the norm follows the addition.
    """
    h = x.view(*x.shape) if block.post_norm else normalise(ctx, cross.norm, x)
    module_input = h if block.inner_dropout else None
    h = attention(ctx, cross.attention, h, x.dtype)
    h = dropout(ctx.tape, normalise(ctx, cross.output_norm, h), block.dropout)
    del module_input
    x = add(ctx.tape, x, h, "residual")
    return normalise(ctx, cross.norm, x) if block.post_norm else x
