"""Who looks on while a step runs: the tracer, or the GPU's counters."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Told where the step stands."""

    phase: str

    def enter(self, phase: str) -> None:
        """From now on the step is in this phase."""


def enter_loss(watch: Watch) -> None:
    """The head starts: what was forward is now the loss. A head that is recomputed in backward changes nothing."""
    if watch.phase == "forward":
        watch.enter("loss")
