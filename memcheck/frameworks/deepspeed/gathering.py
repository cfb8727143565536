"""Which parameters ZeRO-3 has gathered at once: its coordinator, replayed over one forward and backward.

Read off DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (``_fetch_sub_module_impl``,
``__params_to_release``) and partition_parameters.py (``_all_gather_dtype``, ``AllGatherCoalescedHandle.wait``: several
parameters come in one flat buffer, out of which all are copied when the first is used, and which stays until the last
is; one comes by itself; ``NoGatherHandle``: a single rank gathers nothing).
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.record import Record
from memcheck.remembered import lru_cache


class GatheredWeight(Record):
    """One parameter."""

    numel: int
    persists: bool
    """It is never let go of."""
    is_kept: bool
    """Autograd saves a view of it in forward: its storage lives until its backward, gathered again or not."""


Module = tuple[int, ...]
"""Numbers of the parameters that a module has itself."""


class GatherLimits(Record):
    """What the engine goes by, in elements."""

    ways: int
    ahead: int
    """``stage3_prefetch_bucket_size``"""
    live: int
    """``stage3_max_live_parameters``"""
    reuse: int
    """``stage3_max_reuse_distance``"""
    one_by_one: bool
    """``stage3_allgather_sequential``"""


class GatheredMost(Record):
    """The most elements that live at once: until the last module has its own, while that runs, and behind it."""

    forward: int = 0
    head: int = 0
    backward: int = 0


@lru_cache(maxsize=64)
def gathered(
    weights: tuple[GatheredWeight, ...],
    units: tuple[tuple[Module, ...], ...],
    limits: GatherLimits,
    *,
    recompute: bool,
    idle: int = 0,
) -> GatheredMost:
    """``units``: each unit's modules in the order of the forward; ``recompute``: units between the ends run twice;
    ``idle``: so many at the beginning have no backward.

    A module that has no parameters of its own, the model or a layer, fetches ahead as well.
    """
    units = tuple([((), *unit) for unit in units])
    forward: list[Module] = [(), *(module for unit in units for module in unit)]
    backward = list[tuple[Module, bool]]()
    for number in range(len(units) - 1, idle - 1, -1):
        if recompute and 0 < number < len(units) - 1:
            backward += [(module, False) for module in units[number]]
        backward += [((), True), *((module, True) for module in units[number][:0:-1])]
    coordinator = _Coordinator(weights, [*forward, *(module for module, _ in backward)], limits)
    turns = [(module, True, False) for module in forward] + [(module, False, last) for module, last in backward]
    most = [0, 0, 0]
    for number, (module, ahead, last) in enumerate(turns):
        coordinator.most = coordinator.live
        runs = coordinator.step(module, forward=ahead, last=last)
        phase = (number >= len(forward) - 1) + (number >= len(forward) + 2)
        fetches = 0 if ahead else phase
        most[fetches] = max(most[fetches], coordinator.most)
        most[phase] = max(most[phase], runs)
    return GatheredMost(*most)


class _Coordinator:
    def __init__(self, weights: Sequence[GatheredWeight], steps: Sequence[Module], limits: GatherLimits) -> None:
        self.weights, self.limits = weights, limits
        self.live = self.most = 0
        self._step = self._available = self._next = 0
        self._there, self._flying = set[int](), dict[int, list[int]]()
        """Parameters that are gathered, and those under way, each with all that come with it and are not used yet."""
        self._copied, self._held = set[int](), dict[int, int]()
        self._queue = [(number, step) for step, module in enumerate(steps) for number in sorted(module)]
        self._fetched_for = dict.fromkeys(range(len(weights)), -1)
        self._uses: dict[int, list[int]] = {}
        for number, step in reversed(self._queue):
            self._uses.setdefault(number, []).append(step)
        self._before = [0]
        """Elements of the modules before each step."""
        for module in steps:
            self._before.append(self._before[-1] + sum(weights[number].numel for number in module))

    def step(self, module: Module, *, forward: bool, last: bool) -> int:
        """Fetch a module's parameters and those ahead of it, let it run, and let go of what is not used soon.

        What lives while it runs.
        """
        if not module:
            self._prefetch()
            self._step += 1
            return self.live
        self._gather([number for number in module if self._is_missing(number)])
        for number in module:
            self._wait(number)
        fresh = {number for number in module if self._fetched_for[number] < self._step}
        while fresh and self._next < len(self._queue):
            number, step = self._queue[self._next]
            self._fetched_for[number] = step
            fresh.discard(number)
            self._next += 1
        self._prefetch()
        self._step += 1
        runs = self.live
        for number in module:
            if self._goes(number):
                self._release(number, keeps=forward and self.weights[number].is_kept)
            if last:
                self.live -= self._held.pop(number, 0)
        return runs

    def _is_missing(self, number: int) -> bool:
        return not (self.weights[number].persists or number in self._there or number in self._flying)

    def _padded(self, number: int) -> int:
        return -(-self.weights[number].numel // self.limits.ways) * self.limits.ways

    def _gather(self, numbers: list[int]) -> None:
        if not numbers:
            return
        self._available += sum(self.weights[number].numel for number in numbers)
        self.live += sum(map(self._padded, numbers))
        together = len(numbers) > 1 and not self.limits.one_by_one
        for number in numbers:
            self._flying[number] = numbers if together else [number]
        self.most = max(self.most, self.live)

    def _wait(self, number: int) -> None:
        """A parameter is used: what came with it is copied, once."""
        group = self._flying.pop(number, None)
        if group is None:
            return
        self._there.add(number)
        if len(group) == 1 and number not in self._copied:
            return
        if number not in self._copied:
            self.live += sum(self.weights[other].numel for other in group)
            self._copied.update(group)
            self.most = max(self.most, self.live)
        self._copied.discard(number)
        if not any(other in self._copied for other in group):
            self.live -= sum(map(self._padded, group))

    def _prefetch(self) -> None:
        most = min(self.limits.live - self._available, self.limits.ahead)
        if most <= 0:
            return
        numbers, count = list[int](), 0
        while count < most and self._next < len(self._queue):
            number, step = self._queue[self._next]
            self._next += 1
            self._fetched_for[number] = max(self._fetched_for[number], step)
            if self._is_missing(number) and number not in numbers:
                numbers.append(number)
                count += self.weights[number].numel
        self._gather(numbers)

    def _goes(self, number: int) -> bool:
        """Whether it is let go of: unless it is fetched for a later step, or used again within the distance."""
        if self.weights[number].persists or number not in self._there or self._fetched_for[number] > self._step:
            return False
        uses = self._uses[number]
        while uses and uses[-1] < self._step:
            uses.pop()
        return not uses or self._before[uses[-1]] - self._before[self._step] >= self.limits.reuse

    def _release(self, number: int, *, keeps: bool) -> None:
        self._there.discard(number)
        self._available -= self.weights[number].numel
        if keeps:
            self._held[number] = self._held.get(number, 0) + self.weights[number].numel
        else:
            self.live -= self.weights[number].numel
