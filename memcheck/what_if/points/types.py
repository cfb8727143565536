"""A point: a plan with some values replaced, and what memory and speed it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.memory.fit import ABOVE, FITS, TOO_LARGE, UNCERTAIN, on_host
from memcheck.record import Record
from memcheck.timing.types import StepTime

HOST, ILLEGAL = "host-memory", "illegal"
VERDICTS = (FITS, UNCERTAIN, ABOVE, TOO_LARGE, HOST, ILLEGAL)
"""Verdicts on a point: the verdicts on a GPU's memory; ``host-memory`` where the GPU's memory suffices and the node's
does not; ``illegal`` where a rule refuses the plan."""


class PointProblem(Record):
    """Why a point cannot run as it is."""

    code: str
    message: str


class Size(Record):
    """Sequences and recompute of a training job, for people."""

    gpu: str
    gpus: int
    micro_batch: int
    accumulation: int
    global_batch: int
    overhead: float
    """Arithmetic that recompute adds, as a share of the model's own; 0 without recompute."""


class Point(Record):
    """One point. Without an estimate it is illegal, and ``problems`` say why."""

    set: Mapping[str, object]
    """Dotted keys and the values that were used in place of the plan's."""
    verdict: str
    """One of ``VERDICTS``."""
    problems: tuple[PointProblem, ...] = ()
    needed_bytes: int = 0
    """The floor below which the job dies; the verdict is taken on it."""
    needed_interval_bytes: tuple[int, int] = (0, 0)
    device_bytes: int = 0
    """What is seen on the GPU, the allocator's cache included."""
    capacity_bytes: int = 0
    interval_bytes: tuple[int, int] = (0, 0)
    instant: str = ""
    components_bytes: Mapping[str, int] = MappingProxyType({})
    step: StepTime | None = None
    untimed: str = ""
    """Why there is no step time."""
    size: Size | None = None
    host_bytes: int = 0
    """What the processes of a node need at most."""
    host_capacity_bytes: int | None = None
    """None where the plan does not state it."""

    @property
    def estimated(self) -> bool:
        """Whether the memory of the point was predicted. It is not for a plan that a rule refuses."""
        return self.verdict != ILLEGAL

    @property
    def utilization(self) -> float:
        """Needed bytes over the GPU's capacity; 0 where the capacity is not known."""
        return self.needed_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    @property
    def headroom_bytes(self) -> int:
        """What is left; negative where it is missing."""
        return self.capacity_bytes - self.needed_bytes

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the problems, once each."""
        return tuple(dict.fromkeys(problem.code for problem in self.problems))

    @property
    def host_short(self) -> bool:
        """Whether a node has less memory than its processes need."""
        return not on_host(self.host_bytes, self.host_capacity_bytes)
