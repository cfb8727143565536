"""Tables and indices that layers hold in addition to parameters."""

from __future__ import annotations

from memcheck.accounts.unit import Part
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.attention_types import HeldMask, PositionTable
from memcheck.models.feed_forward_types import HashedMoe
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mixer


def layer_tables(job: TrainingJob, architecture: Architecture, part: Part) -> list[int]:
    """Bytes of a rank's: ``embed_positions``, [positions, rotary_dim] in fp32 (modeling_gptj.py, GPTJAttention); decays
    in the dtype in which the model is made (modeling_minimax.py, MiniMaxLightningAttention).
    """
    total = sum(_table(job, architecture.vocab_size, block) for block in architecture.layers()[part.first : part.last])
    return [total] if total else []


def _table(job: TrainingJob, words: int, block: Block) -> int:
    """Return the bytes of the buffers of one layer. ``words``: rows of the vocabulary."""
    mixer = block.mixer
    if isinstance(block.mlp, HashedMoe):
        return rounded(words * block.mlp.experts_per_token * ITEM_BYTES["int64"])
    if isinstance(mixer, Mixer):
        return rounded(mixer.buffer_numel * DTYPE_BYTES[job.recipe.params])
    if not isinstance(mixer, Attention):
        return 0
    if isinstance(mixer.extension, PositionTable):
        return rounded(4 * mixer.extension.positions * mixer.rotary_dim)
    return rounded(mixer.extension.rows**2) if isinstance(mixer.extension, HeldMask) else 0


def dsa_indices(job: TrainingJob, architecture: Architecture, part: Part, setting: Setting) -> tuple[int, int]:
    """Return the bytes of the int32 indices of chosen keys that DSA layers pass on (modeling_glm_moe_dsa.py,
    ``prev_topk_indices``).

    The first number is that of arguments, which checkpointed layers keep until their backward. The second is that of
    the variable of the model's forward. A layer without an indexer passes on the indices that it received.
    """
    tokens = setting.batch * setting.sequence
    layers = architecture.layers()[part.first : part.last]
    mixers = [b.mixer for b in layers if isinstance(b.mixer, LatentAttention)]
    indexers = [mixer.extension for mixer in mixers if mixer.extension is not None and mixer.extension.passes]
    sizes = [rounded(4 * tokens * min(setting.sequence, indexer.topk)) for indexer in indexers if indexer.heads]
    if not sizes:
        return 0, 0
    if job.checkpointing.mode == "none":  # a layer that chooses is given the choice before it, too
        return 0, sizes[-1] + (sizes[-2] if indexers[-1].heads and len(sizes) > 1 else 0)
    last_choice = sizes.pop() if indexers[-1].heads else 0  # which no layer is given
    return sum(sizes), last_choice
