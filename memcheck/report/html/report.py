"""The body of a report: its answer, an index where there are several plans, then one part per plan."""

from __future__ import annotations

from memcheck.report.html import bars
from memcheck.report.html.blocks import badge, block
from memcheck.report.html.escape import Html, joined, tag, text
from memcheck.report.story.blocks import PlanStory, Section, Story

HALVES = frozenset({"memory", "step"})
"""Sections that stand beside each other on a wide screen."""


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
    """A line per plan: verdict, name, bar, share."""
    heads = (("Plan", None), ("Verdict", None), ("Memory", "optional"), ("Used", "num"))
    table = tag(
        "table",
        tag("caption", text("The memory that decides, at its fullest moment")),
        tag("thead", tag("tr", *(tag("th", text(head), scope="col", class_=kind) for head, kind in heads))),
        tag("tbody", *(entry(each, number) for number, each in enumerate(story.plans, start=1))),
        class_="index",
    )
    return tag("nav", table, class_="card", aria_label="Plans")


def entry(story: PlanStory, number: int) -> Html:
    """One plan of the index."""
    drawn = [bars.row(each.bars[0], each.scale, each.title, height=bars.ROW) for each in story.pictures[:1]]
    facts = dict(story.facts)
    where = ", ".join(filter(None, (facts.get("Model", ""), facts.get("GPUs", ""))))
    name = tag("a", text(story.name), href=f"#plan-{number}")
    return tag(
        "tr",
        tag("th", name, tag("span", text(where), class_="soft small under"), scope="row"),
        tag("td", badge(story.verdict)),
        tag("td", *drawn, class_="optional"),
        tag("td", tag("b", text(story.used)), class_="num"),
    )


def plan(story: PlanStory, number: int) -> Html:
    """All about one plan."""
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
    """Blocks in a card under their heading; the long ones are folded. ``half``: beside another where there is room."""
    inside = [block(each, f"{item.title}: {name}") for each in item.blocks]
    heading = tag("h3", text(item.title), id=anchor)
    parts = [tag("details", tag("summary", heading), *inside)] if item.folded else [heading, *inside]
    return tag("div", *parts, class_="card half" if half else "card")
