"""How long steps of plain PyTorch take: what other stacks have in common with it starts from here."""

from __future__ import annotations

from memcheck.accounts.ranks import Part
from memcheck.frameworks.registry import Timing
from memcheck.frameworks.torch.fsdp_limits import experts_padding
from memcheck.frameworks.torch.pipelining import stage_parts
from memcheck.job.types import TrainingJob


def ranks(num_layers: int, _job: TrainingJob, ways: int) -> list[list[tuple[Part, int]]]:
    """One run of layers for each rank."""
    return [[(part, 0)] for part in stage_parts(num_layers, ways)]


def overlaps(job: TrainingJob) -> tuple[bool, bool]:
    """FSDP2 prefetches, DDP reduces buckets during backward."""
    return True, job.layout.zero_stage == 3


TIMING = Timing(
    ranks=ranks,
    context=lambda _job: "torch",
    dispatch=lambda _job: "copies",
    overlaps=overlaps,
    fuses=lambda job: job.compile,
    copies_gathered=lambda job: "tensor" in job.framework.parallelism.degrees,
    repeats_kv_heads=lambda _job: False,
    fused_products=lambda _job: "",
    experts_padding=experts_padding,
)
