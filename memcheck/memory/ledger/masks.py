"""Attention masks that transformers makes once per model (masking_utils.py, create_causal_mask and its relatives).

They live until the stack's forward returns; checkpointed layers hold them, as arguments, to their backward.
"""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.architecture.types import Attention, Block, LatentAttention
from memcheck.memory.ledger.attention import chosen_kernel, needs_mask
from memcheck.memory.ledger.context import Setting
from memcheck.memory.tape.tensor import ITEM_BYTES, rounded


def model_mask_bytes(blocks: Iterable[Block], setting: Setting) -> int:
    """Bytes of all masks: one per kind of layer (full, sliding).

    scaled_dot_product_attention gets a boolean mask of one sequence where a window needs one; eager attention gets an
    additive one in the stream's dtype, of every sequence, for each kind.
    """
    if setting.style != "transformers":
        return 0
    s = setting.sequence
    kinds: dict[int | None, int] = {}
    for block in blocks:
        found = _mask(block, setting)
        if found is not None:
            window, dtype, sequences = found
            kinds[window] = rounded(sequences * s * s * ITEM_BYTES[dtype])
    return sum(kinds.values())


def _mask(block: Block, setting: Setting) -> tuple[int | None, str, int] | None:
    """Window, dtype and sequences of the mask that this layer is given."""
    mixer = block.mixer
    if isinstance(mixer, LatentAttention):
        mixer = Attention(mixer.heads, mixer.heads, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
    if not isinstance(mixer, Attention):
        return None
    compute = setting.autocast or setting.compute
    kernel = chosen_kernel(setting.attention, compute, mixer, setting.sequence, setting.style)
    if mixer.named_scores and mixer.alibi:  # Falcon adds its bias to the mask: one of every head
        return mixer.window, setting.params, setting.batch * -(-mixer.heads // setting.tensor)
    if kernel == "eager":
        return mixer.window, setting.params, setting.batch
    if kernel != "flash" and needs_mask(mixer, setting.sequence, setting.style):
        return mixer.window, "bool", 1
    return None
