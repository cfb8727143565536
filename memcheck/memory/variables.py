"""Python variables of a forward that refer to tensors beyond their last use."""

from __future__ import annotations

from memcheck.memory.timeline import Timeline


class Variables:
    """What the variables hold, until each is assigned again or the forward returns."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._held: dict[str, tuple[str, int]] = {}

    def assign(self, name: str, component: str, n_bytes: int) -> None:
        """Bytes that the variable refers to from now on, in place of those before."""
        component_before, before = self._held.get(name, (component, 0))
        if n_bytes or before:
            self.timeline.release(component_before, before)
            self.timeline.hold(component, n_bytes)
            self._held[name] = component, n_bytes

    def let_go(self) -> None:
        """The forward has returned."""
        for component, n_bytes in self._held.values():
            self.timeline.release(component, n_bytes)
        self._held.clear()
