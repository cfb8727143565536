"""How long steps of the DeepSpeed engine take, in addition to transformers' layers."""

from __future__ import annotations

from memcheck.frameworks.torch.timing import TIMING as TORCH
from memcheck.job.types import TrainingJob


def overlaps(job: TrainingJob) -> tuple[bool, bool]:
    """Say whether the reduction and the gathering of parameters overlap: by default at stage 3.

    ``overlap_comm``, runtime/zero/config.py.
    """
    both = bool(job.option("overlap_comm", job.layout.zero_stage == 3))
    return both, both


# AutoTP's ranks all have all tokens: their sums are all-reduces
TIMING = TORCH._replace(context=lambda _job: "ulysses", overlaps=overlaps, copies_gathered=lambda _job: False)
