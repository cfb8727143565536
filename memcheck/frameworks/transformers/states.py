"""Tensors that transformers' models hold in addition to their parameters: rotary tables, made in each forward."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, rounded
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
