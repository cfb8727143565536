"""The records of a dossier."""

from __future__ import annotations

from memcheck.accounts.estimate import CACHE
from memcheck.record import Record


class OnGpu(Record):
    """The plan on another GPU, all else as it is."""

    gpu: str
    capacity_bytes: int
    needed_bytes: int = 0
    """0 when the plan cannot run there."""
    needed_high_bytes: int = 0
    """The upper end of its 95% interval."""
    bf16_tflops: float | None = None
    """Dense, by the maker; None when not known."""
    refused: str = ""
    """Why it cannot run there: a rule and what it says."""
    fails: str = ""
    """A rule, and what it says, that fails the plan there as it does on its own GPU; the figures hold all the same."""
    host_short: bool = False
    """A node has less memory than its processes need."""
    assumed: tuple[str, ...] = ()
    """What the speed on that GPU assumes that is neither stated nor measured."""
    relative_speed: float | None = None
    """Tokens per second over those on the plan's own GPU, by the roofline; None without a time."""
    needed_low_bytes: int = 0
    """The lower end of the 95% interval."""

    @property
    def utilization(self) -> float:
        """``needed / capacity``."""
        return self.needed_bytes / self.capacity_bytes if self.capacity_bytes else 0.0


class RankDevice(Record):
    """One pipeline rank at its own peak, with what the allocator and the driver hold on top."""

    pipeline_rank: int
    instant: str
    components_bytes: dict[str, int]

    @property
    def needed_bytes(self) -> int:
        """What the rank cannot do without: all but the allocator's cache."""
        return sum(count for name, count in self.components_bytes.items() if name != CACHE)


class Dossier(Record):
    """The figures of one plan: its ranks, the GPUs that it may run on, and the basis of its interval."""

    ranks: tuple[RankDevice, ...]
    gpus: tuple[OnGpu, ...]
    """The plan's own comes first."""
    basis: str
    """The kinds of plan whose measured errors the interval is based on."""
    cases: int
    """How many of them there are at least."""
