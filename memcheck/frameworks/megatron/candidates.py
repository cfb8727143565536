"""The moments of a schedule at which a pass can be the fullest."""

from __future__ import annotations

from collections import Counter
from operator import ge

from memcheck.frameworks.megatron.schedule import PassRun
from memcheck.record import Record
from memcheck.remembered import lru_cache


class Pass(Record):
    """A micro-batch's way through one chunk."""

    forward: bool
    chunk: int


WARM_INPUT = 2
"""From its backward on the last input that the warm-up has received waits with its gradient: it is in a variable of an
interleaved schedule (``input_tensor``), which nothing overwrites while sends and receives run beside the passes."""


Place = tuple[int, tuple[int, ...], int]
"""A moment of a schedule: its number in order, micro-batches in flight by chunk, what waits beside it."""


@lru_cache(maxsize=512)
def candidates(
    schedule: tuple[PassRun, ...], chunks: int, every_chunk_saves: bool
) -> tuple[tuple[Pass, tuple[Place, ...]], ...]:
    """For every pass the moments that can be its fullest, whatever the chunks save.

    From one repetition of a run to the next the bytes change by a constant, and once more by the gradients that wait
    from the first backward on: so the maximum lies at its first, its second or its last repetition, or where the last
    input of the warm-up begins to wait. A moment that holds no more of any chunk than an earlier one, and has no chunk
    empty that is not, is never fuller. Where every chunk saves something, one that holds no less of any chunk than an
    earlier one, and more of some, is always fuller.
    """
    counts = [0] * chunks
    waits = False
    warm, left = _warm_input(schedule)
    found: dict[Pass, list[Place]] = {}
    number = 0

    def propose(a_pass: Pass, done: tuple[int, int], run: PassRun, waits: int) -> None:
        nonlocal number
        now = list(counts)
        if run.forward is not None:
            now[run.forward] += done[0]
        if run.backward is not None:
            now[run.backward] -= done[1]
        known = found.setdefault(a_pass, [])
        number += 1
        mine = (number, tuple(now), waits)
        if any(_covers(other, mine) for other in known):
            return
        if every_chunk_saves:
            known[:] = [other for other in known if not (_covers(mine, other) and mine[1] != other[1])]
        known.append(mine)

    for run in schedule:
        reaches = max(0, left) if run.backward == warm else run.times
        for k in sorted({0, min(1, run.times - 1), min(reaches, run.times - 1), run.times - 1}):
            gone = k if run.backward is not None else 0
            now = WARM_INPUT if left <= 0 or k >= reaches else int(waits or gone > 0)
            if run.forward is not None:
                propose(Pass(True, run.forward), (k, gone), run, now)
            if run.backward is not None:
                propose(Pass(False, run.backward), (k + 1, k + 1), run, now)
        if run.forward is not None:
            counts[run.forward] += run.times
        if run.backward is not None:
            counts[run.backward] -= run.times
            waits = True
        left -= run.times * (run.backward == warm)
    return tuple((a_pass, tuple(places)) for a_pass, places in found.items())


def _warm_input(schedule: tuple[PassRun, ...]) -> tuple[int, int]:
    """The chunk of the last input that the warm-up receives, and how many of its backwards are over before it waits.

    The input is that of the first forward beside a backward; if there is none, the warm-up receives none that is left.
    """
    forwards = Counter[int]()
    for run in schedule:
        if run.forward is not None and run.backward is not None:
            return run.forward, forwards[run.forward] + 1
        if run.forward is not None:
            forwards[run.forward] += run.times
    return -1, 1


def _covers(one: Place, other: Place) -> bool:
    """Whether ``one`` holds all that ``other`` does. Behind the first backward an empty chunk holds what it kept."""
    if one[2] < other[2]:
        return False
    empties = other[2] and any(m and not n for m, n in zip(one[1], other[1], strict=True))
    return all(map(ge, one[1], other[1])) and not empties
