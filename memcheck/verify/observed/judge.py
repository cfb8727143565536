"""Is a figure from a run consistent with the estimate?"""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.job.types import TrainingJob
from memcheck.memory.allocator import allocator_group
from memcheck.memory.interval import error_group
from memcheck.memory.overhead import library_terms
from memcheck.memory.residuals import look_up, residuals
from memcheck.record import Record
from memcheck.verify.observed.reading import MemoryReading
from memcheck.verify.subject import Subject


class Judgement(Record):
    """One reading compared with what was predicted for it."""

    reading: MemoryReading
    predicted_bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def consistent(self) -> bool:
        """Within what predictions of this kind were seen to be off by."""
        if self.reading.at_least:
            return self.reading.bytes <= self.high_bytes
        return self.low_bytes <= self.reading.bytes <= self.high_bytes

    @property
    def gap(self) -> int:
        """Read minus predicted."""
        return self.reading.bytes - self.predicted_bytes


def predicted(subject: Subject, estimate: Estimate, metric: str) -> int:
    """The quantity that a metric reads. A figure without a metric is taken for device memory."""
    if metric == "allocated":
        return estimate.allocated_bytes + workspaces(subject)
    return estimate.reserved_bytes if metric == "reserved" else estimate.device_bytes


def workspaces(subject: Subject) -> int:
    """BLAS workspaces come from torch's allocator, so that its counters include them."""
    if not isinstance(subject.job, TrainingJob):
        return 0
    return sum(n_bytes for name, n_bytes, _ in library_terms(subject.job, subject.gpu) if name == "BLAS workspaces")


def judge(subject: Subject, reading: MemoryReading) -> Judgement:
    """Compare a reading with the prediction and its interval."""
    estimate = subject.estimate
    low, high = min(estimate.interval_bytes[0], estimate.allocated_bytes), estimate.interval_bytes[1]
    said = predicted(subject, estimate, reading.metric)
    tables = residuals()
    _, own = look_up(tables.allocated, error_group(subject.job))
    if reading.metric == "allocated":
        high = min(high, int(estimate.allocated_bytes * max(1.0, own.high)) + workspaces(subject))
    elif reading.metric == "reserved":
        _, kept = look_up(tables.reserved, allocator_group(subject.job))
        worst = next(rank for rank in estimate.ranks if rank.pipeline_rank == estimate.pipeline_rank)
        pools = int(estimate.allocated_bytes * max(1.0, own.high)) + worst.pools.apart
        high = min(high, int(pools * kept.high) + workspaces(subject))
    return Judgement(reading=reading, predicted_bytes=said, low_bytes=min(low, said), high_bytes=max(high, said))
