"""The body of a report: its answer, an index where there are several plans, then one part per plan."""

from __future__ import annotations

from memcheck.report.html import bars
from memcheck.report.html.blocks import badge, block
from memcheck.report.html.escape import text
from memcheck.report.story.blocks import PlanStory, Section, Story

HALVES = frozenset({"memory", "step"})
"""Sections that stand beside each other on a wide screen."""


def body(story: Story) -> str:
    """Everything inside ``<main>``."""
    head = f'<header><p class="brand">memcheck</p><h1>{text(story.title)}</h1><p class="soft">{text(story.summary)}</p>'
    parts = [f"{head}</header>"]
    if story.unreadable:
        parts.append(unreadable(story))
    if len(story.plans) > 1:
        parts.append(index(story))
    parts += [plan(each, number) for number, each in enumerate(story.plans, start=1)]
    return "\n".join(parts)


def unreadable(story: Story) -> str:
    """Paths that could not be read."""
    items = "".join(f"<li><code>{text(path)}</code>: {text(why)}</li>" for path, why in story.unreadable)
    return f'<div class="card"><h2>Not readable</h2><ul>{items}</ul></div>'


def index(story: Story) -> str:
    """A line per plan: verdict, name, bar, share."""
    rows = "".join(entry(each, number) for number, each in enumerate(story.plans, start=1))
    return (
        '<nav class="card" aria-label="Plans"><table class="index">'
        "<caption>The memory that decides, at its fullest moment</caption>"
        '<thead><tr><th scope="col">Plan</th><th scope="col">Verdict</th><th scope="col" class="optional">Memory</th>'
        f'<th scope="col" class="num">Used</th></tr></thead><tbody>{rows}</tbody></table></nav>'
    )


def entry(story: PlanStory, number: int) -> str:
    """One plan of the index."""
    bar = ""
    for picture in story.pictures[:1]:
        bar = bars.row(picture.bars[0], picture.scale, picture.title, height=bars.ROW)
    facts = dict(story.facts)
    where = ", ".join(filter(None, (facts.get("Model", ""), facts.get("GPUs", ""))))
    return (
        f'<tr><th scope="row"><a href="#plan-{number}">{text(story.name)}</a>'
        f'<span class="soft small under">{text(where)}</span></th><td>{badge(story.verdict)}</td>'
        f'<td class="optional">{bar}</td><td class="num"><b>{text(story.used)}</b></td></tr>'
    )


def plan(story: PlanStory, number: int) -> str:
    """All about one plan."""
    anchor = f"plan-{number}"
    parts = [
        f'<div class="head"><h2>{text(story.name)}</h2>{badge(story.verdict)}</div>',
        f'<p class="soft small"><code>{text(story.path)}</code></p>',
        '<div class="card">',
        f'<p class="lead"><b>{text(story.lead)}</b></p>',
    ]
    parts += [bars.big(picture) for picture in story.pictures]
    if story.advice:
        parts.append(f"<p>{text(story.advice)}</p>")
    if story.facts:
        rows = "".join(f"<div><dt>{text(label)}</dt><dd>{text(value)}</dd></div>" for label, value in story.facts)
        parts.append(f'<dl class="tiles">{rows}</dl>')
    parts.append("</div>")
    halves = HALVES if {each.key for each in story.sections} >= HALVES else frozenset()
    cards = [section(each, f"{anchor}-{each.key}", story.name, half=each.key in halves) for each in story.sections]
    parts.append(f'<div class="cards">{"".join(cards)}</div>')
    return f'<section class="plan" id="{anchor}">{"".join(parts)}</section>'


def section(item: Section, anchor: str, name: str, *, half: bool) -> str:
    """Blocks in a card under their heading; the long ones are folded. ``half``: beside another where there is room."""
    inside = "".join(block(each, f"{item.title}: {name}") for each in item.blocks)
    heading = f'<h3 id="{anchor}">{text(item.title)}</h3>'
    inside = f"<details><summary>{heading}</summary>{inside}</details>" if item.folded else heading + inside
    kind = "card half" if half else "card"
    return f'<div class="{kind}">{inside}</div>'
