"""The two figures of a plan from its own allocations: what it needs, and what will be seen."""

from __future__ import annotations

from memcheck.memory.overhead import slack
from memcheck.record import Record
from memcheck.verify.replay.held import HeldMemory, held
from memcheck.verify.request import Request
from memcheck.verify.types import RankObservation


class Replayed(Record):
    """One rank's step through torch's caching allocator, in bytes."""

    held: HeldMemory
    expandable: bool
    needed_bytes: int
    """The smallest memory on which the steps survive, with context, libraries and communicators."""
    seen_bytes: int
    """What the GPU shows: with what the allocator keeps as far as there is room."""
    capacity_bytes: int


def replayed(request: Request, observed: RankObservation) -> Replayed | None:
    """None of a run whose allocations were not followed."""
    if not observed.events:
        return None
    subject, job = request.subject, request.job
    found = held(list(observed.events), expandable=job.expandable_segments)
    outside = slack(job, subject.gpu, subject.overhead, found.allocated).context_and_nccl
    needed = found.needed + outside
    capacity = subject.gpu.memory_bytes
    seen = max(needed, min(found.reserved + outside, capacity))
    return Replayed(
        held=found,
        expandable=job.expandable_segments,
        needed_bytes=needed,
        seen_bytes=seen,
        capacity_bytes=capacity,
    )
