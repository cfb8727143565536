"""Constant tables that layers have as buffers."""

from __future__ import annotations

from memcheck.accounts.unit import Part
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.attention_types import HeldMask, PositionTable
from memcheck.models.types import Architecture, Attention, Block, Mixer, Moe


def layer_tables(job: TrainingJob, architecture: Architecture, part: Part) -> list[int]:
    """Bytes of a rank's: ``embed_positions``, [positions, rotary_dim] in fp32 (modeling_gptj.py, GPTJAttention); decays
    in the dtype in which the model is made (modeling_minimax.py, MiniMaxLightningAttention).
    """
    total = sum(_table(job, block) for block in architecture.layers()[part.first : part.last])
    return [total] if total else []


def _table(job: TrainingJob, block: Block) -> int:
    mixer = block.mixer
    if isinstance(block.mlp, Moe) and block.mlp.table:
        return rounded(block.mlp.table * ITEM_BYTES["int64"])
    if isinstance(mixer, Mixer):
        return rounded(mixer.buffer_numel * DTYPE_BYTES[job.recipe.params])
    if not isinstance(mixer, Attention):
        return 0
    if isinstance(mixer.own, PositionTable):
        return rounded(4 * mixer.own.positions * mixer.rotary_dim)
    return rounded(mixer.own.rows**2) if isinstance(mixer.own, HeldMask) else 0
