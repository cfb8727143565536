"""Jobs as keys: what is computed once for all jobs that differ in nothing that it depends on."""

from __future__ import annotations

from functools import lru_cache

from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


__all__ = ["UNREAD"]


class _Unread:
    """Raises where it is looked into, compared, counted with or asked whether it is true."""

    __slots__ = ()

    def _read(self, *_others: object) -> NoReturn:
        raise AssertionError("a reduced job was asked for a value that it was reduced by")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._read()

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _read
    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __int__ = __index__ = __str__ = _read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _read
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _read

    def __hash__(self) -> int:
        return id(_Unread)

    def __repr__(self) -> str:
        return "UNREAD"


UNREAD: Any = _Unread()


def host_key(job: TrainingJob) -> TrainingJob:
    """Return the part of a job on which host memory depends, as a cache key: what only affects a step is left out.

    Of the number of micro-batches it keeps whether there is one or several.
    """
    return job._replace(
        micro_batch_size=UNREAD,
        sequence_length=UNREAD,
        gradient_accumulation_steps=min(job.gradient_accumulation_steps, 2),
        checkpointing=UNREAD,
        attention=UNREAD,
        loss=UNREAD,
        objective=UNREAD,
        torch=UNREAD,
    )


def state_key(job: TrainingJob) -> TrainingJob:
    """Return the part of a job on which resident states (weights, gradients, optimizer states) depend, as a cache key.

    These are tensors, dtypes, optimizer and how many ranks share each state. Of the number of data-parallel ranks it
    keeps whether there is one or several.
    """
    layout = job.layout
    per_node = layout.gpus_per_node if job.optimizer.name == "muon" else UNREAD  # Newton-Schulz' choices
    return host_key(job)._replace(
        initialization=UNREAD,
        checkpoint=UNREAD,
        layout=layout._replace(nodes=UNREAD, gpus_per_node=per_node, data=min(layout.data, 2)),
    )


class AnyBatch:
    """Two are the same only if they are one object, so that to look something up by one takes no time."""

    __slots__ = ("_job", "architecture")

    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        self._job, self.architecture = job, architecture

    def of(self, micro_batch_size: int, sequence_length: int, steps: int) -> TrainingJob:
        """The job with a batch. ``steps``: micro-batches."""
        return _with_batch(self._job, micro_batch_size, sequence_length, steps)


def any_batch(job: TrainingJob, architecture: Architecture) -> AnyBatch:
    """The one of all jobs that differ from this one in their batch alone."""
    return _kept(_with_batch(job, 1, 1, 1), architecture)


@lru_cache(maxsize=1024)
def _kept(job: TrainingJob, architecture: Architecture) -> AnyBatch:
    return AnyBatch(job, architecture)


def _with_batch(job: TrainingJob, micro_batch_size: int, sequence_length: int, steps: int) -> TrainingJob:
    return job._replace(
        micro_batch_size=micro_batch_size, sequence_length=sequence_length, gradient_accumulation_steps=steps
    )
