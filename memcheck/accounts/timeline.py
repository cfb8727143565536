"""A step of known sizes, recorded and evaluated in one go: for models without units."""

from __future__ import annotations

from memcheck.accounts.estimate import Instant
from memcheck.accounts.program import Evaluated, Recorder


class Timeline:
    """Bytes by component as they come and go; each call's bytes are a size of their own."""

    __slots__ = ("_recorder", "_sizes")

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._sizes: list[int] = []

    def hold(self, component: str, n_bytes: int) -> None:
        """``n_bytes`` more from now on."""
        self._sizes.append(n_bytes)
        self._recorder.hold(component, len(self._sizes))

    def release(self, component: str, n_bytes: int) -> None:
        """``n_bytes`` fewer from now on."""
        self.hold(component, -n_bytes)

    def mark(self, instant: str, operation: str) -> None:
        """The present as a candidate for the instant's maximum."""
        self._recorder.mark(instant, operation)

    def instants(self) -> tuple[Instant, ...]:
        """The maximum of each instant, in the order in which they first occurred."""
        program = self._recorder.program(len(self._sizes))
        found = Evaluated(program, program.units(self._sizes), (self._sizes,))
        moments = [found.moment(index, found.mark(index).operation) for index in range(len(found.tops))]
        return tuple([Instant(name, text, total, {k: v for k, v in live if v}) for name, text, total, live in moments])
