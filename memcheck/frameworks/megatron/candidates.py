"""The moments of a Megatron schedule at which a pass can be the fullest, whatever its chunks save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import ge

from memcheck.frameworks.megatron.schedule import PassRun
from memcheck.record import Record
from memcheck.remembered import lru_cache


class Pass(Record):
    """A micro-batch's way through one chunk."""

    forward: bool
    chunk: int


class InFlight(Record):
    """A pass at one moment of the schedule, and what else is live then."""

    number: int
    """In the schedule's order."""
    of: Pass
    counts: tuple[int, ...]
    """Micro-batches in flight, for each chunk; without the one that passes."""
    waits: int
    """What else is live: nothing before the first backward; then gradients; then :data:`WARM_INPUT`, too."""

    @property
    def first(self) -> bool:
        """Whether there has been no backward yet."""
        return not self.waits


WARM_INPUT = 2
"""From its backward on, the last input that the warm-up has received stays live with its gradient. A variable of an
interleaved schedule (``input_tensor``) holds it, which nothing overwrites while sends and receives overlap the passes.
"""


@lru_cache(maxsize=512)
def candidates(schedule: tuple[PassRun, ...], kinds: tuple[int, ...], every_chunk_saves: bool) -> tuple[InFlight, ...]:
    """For every kind of pass the moments that can be its fullest, whatever the chunks save, forwards first.

    ``kinds``: for each chunk the rank's first that is like it. From one repetition of a run to the next the bytes
    change by a constant, and once more by the gradients that wait from the first backward on: so the maximum lies at
    its first, its second or its last repetition, or where the last input of the warm-up begins to wait. A moment that
    holds no more of any kind of chunk than an earlier one, and has no more of them empty, is never fuller. Where every
    chunk saves something, one that holds no less of any kind than an earlier one, and more of some, is always fuller.
    """
    counts, held = [0] * len(kinds), [0] * len(kinds)
    waits = False
    warm, left = _warm_input(schedule)
    found: dict[tuple[bool, int], list[tuple[Beside, InFlight]]] = {}
    number, of_each = 0, slice(1, 1 + len(kinds))

    def propose(a_pass: Pass, done: tuple[int, int], run: PassRun, waits: int) -> None:
        nonlocal number
        now, of_kinds = list(counts), list(held)
        for chunk, change in ((run.forward, done[0]), (run.backward, -done[1])):
            if chunk is not None:
                now[chunk] += change
                of_kinds[kinds[chunk]] += change
        known = found.setdefault((a_pass.forward, kinds[a_pass.chunk]), [])
        number += 1
        mine = (waits, *of_kinds, *_empty(now, kinds, a_pass)) if waits else (0, *of_kinds)
        for other, _ in known:
            if all(map(ge, other, mine)):
                return
        if every_chunk_saves:
            held_here = mine[of_each]
            known[:] = [each for each in known if not (all(map(ge, mine, each[0])) and held_here != each[0][of_each])]
        known.append((mine, InFlight(number=number, of=a_pass, counts=tuple(now), waits=waits)))

    for run in schedule:
        reaches = max(0, left) if run.backward == warm else run.times
        for k in sorted({0, min(1, run.times - 1), min(reaches, run.times - 1), run.times - 1}):
            gone = k if run.backward is not None else 0
            now = WARM_INPUT if left <= 0 or k >= reaches else int(waits or gone > 0)
            if run.forward is not None:
                propose(Pass(True, run.forward), (k, gone), run, now)
            if run.backward is not None:
                propose(Pass(False, run.backward), (k + 1, k + 1), run, now)
        for chunk, change in ((run.forward, run.times), (run.backward, -run.times)):
            if chunk is not None:
                counts[chunk] += change
                held[kinds[chunk]] += change
        waits = waits or run.backward is not None
        left -= run.times * (run.backward == warm)
    moments = [moment for some in found.values() for _, moment in some]
    return tuple(sorted(moments, key=lambda moment: (not moment.of.forward, moment.number)))


def _warm_input(schedule: tuple[PassRun, ...]) -> tuple[int, int]:
    """The chunk of the last input that the warm-up receives, and how many of its backwards are over before it waits.

    The input is that of the first forward that overlaps a backward. If there is none, the warm-up receives none that is
    left.
    """
    forwards = Counter[int]()
    for run in schedule:
        if run.forward is not None and run.backward is not None:
            return run.forward, forwards[run.forward] + 1
        if run.forward is not None:
            forwards[run.forward] += run.times
    return -1, 1


Beside = tuple[int, ...]
"""What is live during a pass: what waits, then per kind the micro-batches in flight and, after the first backward, the
empty chunks.

One with as much of everything that both have, ``all(map(ge, one, other))``, holds all that the other does.
"""


def _empty(counts: Sequence[int], kinds: Sequence[int], beside: Pass) -> tuple[int, ...]:
    """Chunks of each kind with nothing in flight. After the first backward they hold what they kept."""
    found = [0] * len(kinds)
    if 0 in counts:
        for chunk, count in enumerate(counts):
            if not count and chunk != beside.chunk:
                found[kinds[chunk]] += 1
    return tuple(found)
