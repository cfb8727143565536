"""What FSDP casts for the root's forward."""

from __future__ import annotations

from memcheck.frameworks.torch.fsdp import gathered_dtype
from memcheck.job.types import DTYPE_BYTES, TrainingJob


def casts_inputs(job: TrainingJob, brought: str) -> bool:
    """Whether FSDP narrows what the batch brings in this dtype, for the root's forward: ``cast_forward_inputs`` of
    FSDP2, and ``cast_root_forward_inputs`` of FSDP1 (torch/distributed/fsdp).
    """
    dtype = gathered_dtype(job)
    return dtype is not None and DTYPE_BYTES[dtype] < DTYPE_BYTES[brought]
