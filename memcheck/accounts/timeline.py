"""Live bytes by component over a step, and the highest point of each instant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from memcheck.accounts.estimate import Instant
from memcheck.accounts.moves import Moment
from memcheck.autograd.curve import High


class Timeline:
    """A running account. ``hold`` and ``release`` change it, ``high`` proposes a momentary maximum on top of it."""

    def __init__(self) -> None:
        self.total = 0
        self.live: defaultdict[str, int] = defaultdict(int)
        self.muted = False
        """What is walked only to know what it leaves behind: its moments are no candidates."""
        self._best: dict[str, tuple[int, dict[str, int], str, High | None]] = {}

    def hold(self, component: str, n_bytes: int) -> None:
        """``n_bytes`` more from now on (fewer when negative)."""
        if n_bytes:
            self.total += n_bytes
            self.live[component] += n_bytes

    def release(self, component: str, n_bytes: int) -> None:
        """``n_bytes`` fewer from now on."""
        if n_bytes:
            self.total -= n_bytes
            self.live[component] -= n_bytes

    def hold_shard(self, n_bytes: int) -> None:
        """A group's reduced gradients from now on."""
        self.hold("gradients", n_bytes)

    def release_shard(self, n_bytes: int) -> None:
        """Without them from now on."""
        self.release("gradients", n_bytes)

    def hold_all(self, components: tuple[tuple[str, int], ...], sign: int = 1) -> None:
        """Several components at once."""
        for component, n_bytes in components:
            self.total += sign * n_bytes
            self.live[component] += sign * n_bytes

    def repeat(self, before: Mapping[str, int], times: int) -> None:
        """What has changed since ``live`` was ``before`` changes ``times`` more."""
        for component, n_bytes in tuple(self.live.items()) if times else ():
            self.hold(component, times * (n_bytes - before.get(component, 0)))

    def mark(self, instant: str, operation: str) -> None:
        """The present as a candidate for the instant's maximum."""
        if not self.muted and self._rises(instant, self.total):
            self._keep(instant, self.total, dict(self.live), operation, None)

    def high(self, instant: str, high: High, where: str) -> None:
        """The present plus a unit's highest point."""
        total = self.total + high.bytes
        if not self.muted and self._rises(instant, total):
            live = dict(self.live)
            for component, n_bytes in high.components:
                live[component] = live.get(component, 0) + n_bytes
            self._keep(instant, total, live, where, high)

    def _rises(self, instant: str, total: int) -> bool:
        """Whether it is more than the instant's maximum so far."""
        best = self._best.get(instant)
        return best is None or total > best[0]

    def _keep(self, instant: str, total: int, live: dict[str, int], operation: str, high: High | None) -> None:
        """A new maximum; ``operation``: with a unit's highest point, the unit."""
        text = operation if high is None else f"{high.label} in {operation}"
        self._best[instant] = (total, live, text, high)

    def instants(self) -> tuple[Instant, ...]:
        """The maximum of each instant, in the order in which they first occurred."""
        return tuple(
            Instant(name, operation, total, {k: v for k, v in live.items() if v})
            for name, (total, live, operation, _) in self._best.items()
        )

    def moments(self) -> tuple[Moment, ...]:
        """The same, with every component that was ever held, for a walk on top of something that rests."""
        return tuple(
            Moment(name, operation, total, tuple(live.items()))
            for name, (total, live, operation, _) in self._best.items()
        )

    def unit_high(self, instant: str) -> High | None:
        """The unit curve behind an instant's maximum."""
        return self._best[instant][3]


class Variables:
    """What Python variables of a forward hold beyond its last use: until each is assigned again, or it returns."""

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
