"""Who looks on while a step runs: the tracer, the GPU's counters, or nobody."""

from __future__ import annotations

from typing import Protocol

PHASES = ("forward", "loss", "backward", "optimizer")
"""The instants of a step after ``init``, as the estimate names them."""


class Watch(Protocol):
    """Told where the step stands."""

    phase: str

    def enter(self, phase: str) -> None:
        """From now on the step is in this phase."""


class Unwatched:
    """A watch that only knows the phase."""

    phase = ""

    def enter(self, phase: str) -> None:
        """Remember the phase."""
        self.phase = phase


def enter_loss(watch: Watch) -> None:
    """The head starts: what was forward is now the loss. A head that is recomputed in backward changes nothing."""
    if watch.phase == "forward":
        watch.enter("loss")
