"""What the engine asks of DeepSpeed: torch's data parallelism around transformers' layers, and how long steps take."""

from __future__ import annotations

from memcheck.frameworks.deepspeed.step import HOST
from memcheck.frameworks.torch.stack import STACK as TORCH_STACK
from memcheck.frameworks.torch.stack import TIMING as TORCH_TIMING
from memcheck.job.types import TrainingJob


def overlaps(job: TrainingJob) -> tuple[bool, bool]:
    """Say whether the reduction and the gathering of parameters overlap: by default at stage 3.

    ``overlap_comm``, runtime/zero/config.py.
    """
    both = bool(job.option("overlap_comm", job.layout.zero_stage == 3))
    return both, both


# AutoTP's ranks all have all tokens: their sums are all-reduces
TIMING = TORCH_TIMING._replace(
    context_kind=lambda _job: "ulysses",
    overlaps_reduction_and_gather=overlaps,
    copies_gathered_states=lambda _job: False,
)


STACK = TORCH_STACK._replace(host_memory=HOST)
