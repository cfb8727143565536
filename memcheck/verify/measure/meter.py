"""The caching allocator's counters, phase by phase."""

from __future__ import annotations

from collections.abc import Callable

import torch

from memcheck.accounts.estimate import Instant


class Meter:
    """A watch that reads ``max_memory_allocated`` and ``max_memory_reserved`` whenever the phase changes."""

    def __init__(self, progress: Callable[[str, str], None]) -> None:
        self.phase = "init"
        self.allocated: dict[str, int] = {}
        self.reserved = 0
        self._progress = progress

    def begin_step(self) -> None:
        """Forget earlier steps."""
        self.phase = "init"
        self.allocated, self.reserved = {}, 0
        torch.cuda.reset_peak_memory_stats()

    def enter(self, phase: str) -> None:
        """Close the account of the phase before; allocations are counted when they are asked for, so nothing waits."""
        self.read()
        self.phase = phase
        self._progress(phase, "")

    def read(self) -> None:
        """The counters since they were last read."""
        peak = torch.cuda.max_memory_allocated()
        self.allocated[self.phase] = max(peak, self.allocated.get(self.phase, 0))
        self.reserved = max(self.reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()

    def instants(self) -> tuple[Instant, ...]:
        """The instants of the step, one per phase; counters know no components."""
        return tuple(
            Instant(name=name, operation="", allocated_bytes=n_bytes, components_bytes={})
            for name, n_bytes in self.allocated.items()
        )
