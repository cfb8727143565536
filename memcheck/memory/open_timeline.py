"""A timeline on which the sizes of gradient shards are left open.

Over how many ranks FSDP2 divides a group decides in general one size alone, that of its reduced gradients: what is
gathered and what goes into a reduction is the whole group. So a step is walked once for all numbers of ranks. A moment
then has its bytes and, of each group, how many shards live beside them; those that may be the highest for some sizes
are kept, in their order, and the sizes decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memcheck.memory.ledger.curve import High
from memcheck.memory.moves import Moment
from memcheck.memory.timeline import Timeline

SHARDS = "shards"
"""Under this name, which is no component, ``live`` has the counts of shards, ``DIGIT`` bits for each group."""
DIGIT = 24
MASK = (1 << DIGIT) - 1


class OpenTimeline(Timeline):
    """As its parent, with counts of shards in place of their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._rivals: dict[str, list[Moment]] = {}

    def hold_shard(self, n_bytes: int) -> None:
        """One more shard of the group that ``n_bytes`` stands for."""
        if n_bytes:
            self.live["gradients"] += 0
            self.live[SHARDS] += n_bytes

    def release_shard(self, n_bytes: int) -> None:
        """One shard fewer."""
        self.live[SHARDS] -= n_bytes

    def repeat(self, before: Mapping[str, int], times: int) -> None:
        """What has changed since ``live`` was ``before`` changes ``times`` more."""
        for component, n_bytes in tuple(self.live.items()) if times else ():
            more = times * (n_bytes - before.get(component, 0))
            if component == SHARDS:
                self.live[SHARDS] += more
            else:
                self.hold(component, more)

    def mark(self, instant: str, operation: str) -> None:
        """The present as a candidate for the instant's maximum."""
        if not self.muted and self._rises(instant, self.total):
            self._keep(instant, self.total, dict(self.live), operation)

    def high(self, instant: str, high: High, where: str) -> None:
        """The present plus a unit's highest point."""
        total = self.total + high.bytes
        if not self.muted and self._rises(instant, total):
            live = dict(self.live)
            for component, n_bytes in high.components:
                live[component] = live.get(component, 0) + n_bytes
            self._keep(instant, total, live, f"{high.label} in {where}")

    def _rises(self, instant: str, total: int) -> bool:
        """Whether no earlier moment has as many bytes and as many shards of each group."""
        shards = self.live.get(SHARDS, 0)
        for _, _, n_bytes, _, counts in reversed(self._rivals.get(instant, ())):
            if n_bytes >= total and (counts == shards or covers(counts, shards)):
                return False
        return True

    def _keep(self, instant: str, total: int, live: dict[str, int], operation: str) -> None:
        shards = live.pop(SHARDS, 0)
        rivals = self._rivals.setdefault(instant, [])
        if rivals:
            rivals[:] = [r for r in rivals if total <= r[2] or not covers(shards, r[4])]
        rivals.append(Moment(instant, operation, total, tuple(live.items()), shards))

    def moments(self) -> tuple[Moment, ...]:
        """Of each instant the moments that may be its highest, in their order."""
        return tuple(moment for rivals in self._rivals.values() for moment in rivals)


def covers(one: int, other: int) -> bool:
    """Whether ``one`` counts no fewer shards of any group."""
    while other:
        if one & MASK < other & MASK:
            return False
        one >>= DIGIT
        other >>= DIGIT
    return True


def closed(moments: Sequence[Moment], sizes: Sequence[int]) -> tuple[Moment, ...]:
    """The highest moment of each instant, the first of equal ones, when shards have these sizes."""
    best: dict[str, tuple[int, int, Moment]] = {}
    for moment in moments:
        name, _, total, _, shards = moment
        held = group = 0
        while shards:
            held += (shards & MASK) * sizes[group]
            shards >>= DIGIT
            group += 1
        total += held
        known = best.get(name)
        if known is None or total > known[0]:
            best[name] = (total, held, moment)
    found = []
    for total, held, moment in best.values():
        live = moment.live
        if held:
            live = tuple([(name, n + held) if name == "gradients" else (name, n) for name, n in live])
        found.append(Moment(moment.name, moment.operation, total, live))
    return tuple(found)
