"""An indexer's choice, which layers hand to the next."""

from __future__ import annotations

from memcheck.accounts.unit import Part
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import rounded
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, LatentAttention


def choices(job: TrainingJob, architecture: Architecture, part: Part, setting: Setting) -> tuple[int, int]:
    """Bytes of int32 indices that each layer hands to the next (modeling_glm_moe_dsa.py, ``prev_topk_indices``): of
    arguments, which checkpointed layers hold to their backward, and of the variable of the model's forward. A layer
    without an indexer hands on what it was given.
    """
    tokens = setting.batch * setting.sequence
    layers = architecture.layers()[part.first : part.last]
    mixers = [b.mixer for b in layers if isinstance(b.mixer, LatentAttention)]
    indexers = [m.indexer for m in mixers if m.indexer is not None and m.indexer.passes]
    sizes = [rounded(4 * tokens * min(setting.sequence, each.topk)) for each in indexers if each.heads]
    if not sizes:
        return 0, 0
    if job.checkpointing.mode == "none":  # a layer that chooses is given the choice before it, too
        return 0, sizes[-1] + (sizes[-2] if indexers[-1].heads and len(sizes) > 1 else 0)
    own = sizes.pop() if indexers[-1].heads else 0  # which no layer is given
    return sum(sizes), own
