"""A point: a plan with some values replaced, and what memory and speed it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.record import Record
from memcheck.throughput.types import StepTime

FITS, UNCERTAIN, TOO_LARGE, ILLEGAL = "fits", "uncertain", "does-not-fit", "illegal"
VERDICTS = (FITS, UNCERTAIN, TOO_LARGE, ILLEGAL)


class Problem(Record):
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
    problems: tuple[Problem, ...] = ()
    device_bytes: int = 0
    capacity_bytes: int = 0
    interval_bytes: tuple[int, int] = (0, 0)
    instant: str = ""
    components_bytes: Mapping[str, int] = MappingProxyType({})
    step: StepTime | None = None
    untimed: str = ""
    """Why there is no step time."""
    size: Size | None = None

    @property
    def estimated(self) -> bool:
        """Whether its memory was predicted."""
        return self.verdict != ILLEGAL

    @property
    def utilization(self) -> float:
        """Need over capacity."""
        return self.device_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    @property
    def headroom_bytes(self) -> int:
        """What is left; negative where it is missing."""
        return self.capacity_bytes - self.device_bytes

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the problems, once each."""
        return tuple(dict.fromkeys(problem.code for problem in self.problems))


def verdict_of(device: int, high: int, capacity: int, fail_above: float) -> str:
    """``does-not-fit``: more than the capacity (what MEM101 says). ``uncertain``: above the plan's threshold (MEM102),
    or the interval reaches beyond the capacity (MEM104). ``fits``: neither.
    """
    if device > capacity:
        return TOO_LARGE
    return FITS if device <= capacity * fail_above and high <= capacity else UNCERTAIN
