"""The body of a report: its answer, an index where there are several plans, then one part per plan."""

from __future__ import annotations

from memcheck.edge.text import words
from memcheck.report.html import bars
from memcheck.report.html.blocks import badge, block, swatch
from memcheck.report.html.escape import Html, joined, tag, text
from memcheck.report.story.blocks import PlanStory, Section, Story
from memcheck.report.story.index import CAPTION, LINES, IndexEntry, plan_index

HALVES = frozenset({"memory", "step"})
"""Sections that are next to each other on a wide screen."""


def body(story: Story) -> Html:
    """Everything inside ``<main>``."""
    head = tag(
        "header",
        tag("p", text("memcheck"), class_="brand"),
        tag("h1", text(story.title)),
        tag("p", text(story.summary), class_="soft"),
    )
    parts = [head]
    if story.unreadable:
        parts.append(unreadable(story))
    if len(story.plans) > 1:
        parts.append(index(story))
    parts += [plan(each, number) for number, each in enumerate(story.plans, start=1)]
    return joined(parts, "\n")


def unreadable(story: Story) -> Html:
    """Paths that could not be read."""
    items = (tag("li", tag("code", text(path)), text(f": {why}")) for path, why in story.unreadable)
    return tag("div", tag("h2", text("Not readable")), tag("ul", *items), class_="card")


def index(story: Story) -> Html:
    """A line per plan: name, verdict, share, bar; all bars on one axis."""
    found = plan_index(story)
    return tag(
        "nav",
        tag("p", text(CAPTION), class_="soft small"),
        tag("ol", *map(entry, found.entries), class_="index"),
        tag("p", *(tag("span", swatch(key), text(words(key))) for key in found.keys), class_="legend soft small"),
        tag("p", text(LINES), class_="soft small"),
        class_="card",
        aria_label="Plans",
    )


def entry(item: IndexEntry) -> Html:
    """One plan of the index."""
    drawn = [bars.row(item.bar, item.scale, item.plan.pictures[0].title)] if item.bar is not None else []
    name = tag("a", text(item.plan.name), href=f"#plan-{item.number}")
    return tag(
        "li",
        tag("div", name, tag("span", text(item.where), class_="soft small under")),
        tag("div", badge(item.plan.verdict)),
        tag("b", text(item.plan.used), class_="num"),
        tag("div", *drawn, class_="place"),
    )


def plan(story: PlanStory, number: int) -> Html:
    """The part of the page about one plan: verdict, facts, charts, sections."""
    anchor = f"plan-{number}"
    answer = [tag("p", tag("b", text(story.lead)), class_="lead"), *map(bars.big, story.pictures)]
    if story.advice:
        answer.append(tag("p", text(story.advice)))
    if story.facts:
        rows = (tag("div", tag("dt", text(label)), tag("dd", text(value))) for label, value in story.facts)
        answer.append(tag("dl", *rows, class_="tiles"))
    halves = HALVES if {each.key for each in story.sections} >= HALVES else frozenset()
    cards = (section(each, f"{anchor}-{each.key}", story.name, half=each.key in halves) for each in story.sections)
    return tag(
        "section",
        tag("div", tag("h2", text(story.name)), badge(story.verdict), class_="head"),
        tag("p", tag("code", text(story.path)), class_="soft small"),
        tag("div", *answer, class_="card"),
        tag("div", *cards, class_="cards"),
        class_="plan",
        id=anchor,
    )


def section(item: Section, anchor: str, name: str, *, half: bool) -> Html:
    """Blocks in a card under their heading; long sections are folded. ``half``: half the width of a wide screen."""
    inside = [block(each, f"{item.title}: {name}") for each in item.blocks]
    heading = tag("h3", text(item.title), id=anchor)
    parts = [tag("details", tag("summary", heading), *inside)] if item.folded else [heading, *inside]
    return tag("div", *parts, class_="card half" if half else "card")
