"""The index of several plans: the worst first, all bars on one axis, with the colours that occur."""

from __future__ import annotations

from memcheck.accounts.estimate import CACHE, PARTS
from memcheck.record import Record
from memcheck.report.story.blocks import Bar, PlanStory, Scale, Story

LONGEST = 2.0
"""The axis ends here, in times the capacity: one plan of 1,400 % would make specks of all others' bars."""
TROUBLE = ("bad", "warn", "note", "good")
CAPTION = "The memory that decides, at its fullest moment, as a share of the card's; the worst first"
LINES = "The solid line is all that the card has, the dashed one the plan's limit."


class IndexEntry(Record):
    """One plan's line."""

    number: int
    """The plan's position in the report, from 1."""
    plan: PlanStory
    where: str
    """Model and GPUs."""
    bar: Bar | None
    """The plan's memory as a bar; None for a plan that was not estimated."""
    scale: Scale
    """Ends at the same share of the capacity in every line."""


class PlanIndex(Record):
    """All lines, and the components that their bars show, in the order of all reports."""

    entries: tuple[IndexEntry, ...]
    keys: tuple[str, ...]


def plan_index(story: Story) -> PlanIndex:
    """The plans of a report from the worst to the best; as they stand in the report where they are equally bad."""
    axis = max(1.0, *(min(LONGEST, share(each, cache=True)) for each in story.plans))
    entries = [_entry(each, number, axis) for number, each in enumerate(story.plans, start=1)]
    entries.sort(key=lambda entry: (TROUBLE.index(entry.plan.verdict.tone), -share(entry.plan)))
    shown = {segment.key for entry in entries if entry.bar is not None for segment in entry.bar.segments}
    return PlanIndex(tuple(entries), tuple(key for key in PARTS if key in shown))


def share(story: PlanStory, *, cache: bool = False) -> float:
    """What a plan needs in times the capacity, with or without the ``cache``; without an estimate more than any."""
    if not story.pictures:
        return float("inf")
    bar, scale = story.pictures[0].bars[0], story.pictures[0].scale
    return sum(segment.bytes for segment in bar.segments if cache or segment.key != CACHE) / max(
        1, scale.capacity_bytes
    )


def _entry(story: PlanStory, number: int, axis: float) -> IndexEntry:
    facts = dict(story.facts)
    where = ", ".join(filter(None, (facts.get("Model", ""), facts.get("GPUs", ""))))
    if not story.pictures:
        return IndexEntry(number=number, plan=story, where=where, bar=None, scale=Scale(1, 0))
    first = story.pictures[0]
    scale = first.scale._replace(full_bytes=max(1, int(first.scale.capacity_bytes * axis)))
    return IndexEntry(number=number, plan=story, where=where, bar=first.bars[0], scale=scale)
