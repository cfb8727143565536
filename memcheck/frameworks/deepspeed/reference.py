"""A second model in an engine of its own, as TRL wraps a reference."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.deepspeed.engine import elements, engine_buffers
from memcheck.job.types import DTYPE_BYTES, TrainingJob


def kept_whole(job: TrainingJob, tensors: Sequence[LocalTensor]) -> int:
    """Bytes of a model other than the trained one that an engine of ZeRO-3 does not divide.

    ``job``: the one that would train it. The plan's limits hold for it, too: TRL writes others under names that
    DeepSpeed does not read (``models/utils.py``, ``prepare_deepspeed``).
    """
    return engine_buffers(job, [tensors]).persistent


def gathered_at_once(job: TrainingJob, tensors: Sequence[LocalTensor], dtype: str) -> int:
    """Bytes of such a model that are gathered: the parameter in use, and those ahead of it with their flat buffer.

    A pass without a backward uses nothing again, so that each parameter is released after its layer.
    """
    numels = [t.numel for t in tensors]
    ahead = min(sum(numels), elements(job, "stage3_prefetch_bucket_size", job.architecture.hidden_size))
    return rounded((max(numels, default=0) + 2 * ahead) * DTYPE_BYTES[dtype])
