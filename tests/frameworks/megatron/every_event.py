"""A pipeline rank's step event by event, as Megatron's loops run it: what the shorter account is held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from memcheck.accounts.ranks import Unit
from memcheck.frameworks.megatron.schedule import Pass, PassRun, SchedulePosition, warm_up
from memcheck.frameworks.megatron.step import NO_EXTRA, Rank
from memcheck.record import Record


def expanded(schedule: Sequence[PassRun]) -> Iterator[Pass]:
    """Every pass of a schedule."""
    for run in schedule:
        for _ in range(run.times):
            if run.forward_chunk is not None:
                yield Pass(True, run.forward_chunk)
            if run.backward_chunk is not None:
                yield Pass(False, run.backward_chunk)


def every_pass(place: SchedulePosition, micro_batches: int) -> list[Pass]:
    """Every pass of a step: get_schedule_table, and the warm-up, steady and cool-down loops of schedules.py."""
    chunks, group = place.chunks_per_rank, place.micro_batches_per_group
    table = [
        chunk
        for start in range(0, micro_batches, group)
        for chunk in range(chunks)
        for _ in range(min(group, micro_batches - start))
    ]
    start = min(warm_up(place), len(table))
    found = [Pass(True, chunk) for chunk in table[:start]]
    for i, chunk in enumerate(table):
        if start + i < len(table):
            found.append(Pass(True, table[start + i]))
        found.append(Pass(False, chunks - 1 - chunk))
    return found


class Event(Record):
    """One moment of a step."""

    instant: str
    of: Pass
    counts: tuple[int, ...]
    """Micro-batches in flight, for each chunk."""
    first: bool
    """There was no backward yet."""
    where: str
    """The highest point's label and its unit's name."""
    live: Mapping[str, int]
    """Bytes by component."""

    @property
    def bytes(self) -> int:
        """All that lives."""
        return sum(self.live.values())


def events(rank: Rank, passes: Sequence[Pass]) -> Iterator[Event]:
    """The highest point of every unit in every pass of a step."""
    counts = [0] * len(rank.chunks)
    first = True
    for one in passes:
        counts[one.chunk] -= not one.is_forward
        live: Counter[str] = Counter()
        for index, (units, count) in enumerate(zip(rank.chunks, counts, strict=True)):
            if index != one.chunk and not (count or first):
                live["temporaries"] += between(units)
            for unit in units:
                live.update({name: count * n for name, n in unit.first_curve.saved_components})
            passes = index == one.chunk and not one.is_forward
            live["activations"] += (count + passes) * rank.cached_output * (units[-1].kind != "head")
        if not first:
            live["communication_buffers"] += rank.input_gradient + rank.output_gradient * one.is_forward
        live["activations"] += rank.forward_only_bytes * one.is_forward
        through = _forward if one.is_forward else _backward
        for instant, where, components in through(rank, one.chunk, live):
            yield Event(instant, one, tuple(counts), first, where, components)
        counts[one.chunk] += one.is_forward
        first &= one.is_forward


def between(units: Sequence[Unit]) -> int:
    """What layers of a chunk with nothing in flight keep of their last pass."""
    return sum(unit.first_curve.until_backward_ends for unit in units if unit.kind == "block")


Highs = Iterator[tuple[str, str, Counter[str]]]
"""Instants, labels and what lives."""


def _forward(rank: Rank, chunk: int, live: Counter[str]) -> Highs:
    """Unit by unit; every unit leaves what it saves."""
    for index, unit in enumerate(rank.chunks[chunk]):
        extra = rank.extras[chunk][index] if rank.extras else NO_EXTRA
        now = (
            live
            + Counter(dict(unit.first_curve.forward_peak.components))
            + Counter(communication_buffers=extra.forward_bytes)
        )
        yield "loss" if unit.kind == "head" else "forward", f"{unit.first_curve.forward_peak.label} in {unit.name}", now
        live.update(dict(unit.first_curve.saved_components))


def _backward(rank: Rank, chunk: int, live: Counter[str]) -> Highs:
    """Unit by unit from the last; every unit takes what it has saved."""
    for unit in rank.chunks[chunk]:
        live.update(dict(unit.first_curve.saved_components))
    for index, unit in reversed(list(enumerate(rank.chunks[chunk]))):
        extra = rank.extras[chunk][index] if rank.extras else NO_EXTRA
        live.subtract(dict(unit.first_curve.saved_components))
        now = (
            live
            + Counter(dict(unit.first_curve.backward_peak.components))
            + Counter(communication_buffers=extra.backward_bytes)
        )
        yield "backward", f"{unit.first_curve.backward_peak.label} in {unit.name}", now
        live["temporaries"] += unit.first_curve.until_backward_ends


def highest(rank: Rank, passes: Sequence[Pass]) -> dict[str, list[Event]]:
    """For every instant its highest moments, all of equal ones."""
    found: dict[str, list[Event]] = {}
    for event in events(rank, passes):
        known = found.get(event.instant, [])
        if not known or event.bytes > known[0].bytes:
            found[event.instant] = [event]
        elif event.bytes == known[0].bytes:
            known.append(event)
    return found
