"""The pages: head, index, and every plan on pages of its own."""

from __future__ import annotations

import io

from reportlab.lib.pagesizes import A4
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import CondPageBreak, Flowable, PageBreak, Paragraph, SimpleDocTemplate, Spacer
from reportlab.platypus import Table as Grid

from memcheck.edge.text import words as spaced
from memcheck.report.html.shell import TEXT
from memcheck.report.pdf import style
from memcheck.report.pdf.blocks import CLOSE, BarRow, Big, block
from memcheck.report.pdf.style import colour, markup, swatch, tinted, words
from memcheck.report.story.blocks import PlanStory, Story
from memcheck.report.story.build import CAPTION, LINES, IndexEntry, plan_index

MARGIN = 16 * mm
PADDING = 6
"""Points that ReportLab keeps free inside the margins."""
WIDTH = A4[0] - 2 * (MARGIN + PADDING)
FACTS_PER_ROW = 3
LEAST_ROOM = 130
"""Points below which a section begins on the next page."""


class OutlineEntry(Flowable):
    """An entry of the reader's outline; takes no room."""

    def __init__(self, title: str, key: str, level: int) -> None:
        super().__init__()
        self.title, self.key, self.level = title, key, level

    def wrap(self, *available: float) -> tuple[float, float]:
        """The size of the bookmark on the page, which is zero in width and height."""
        return 0, 0

    def draw(self) -> None:
        """The place and its name."""
        self.canv.bookmarkPage(self.key)
        self.canv.addOutlineEntry(words(self.title), self.key, self.level, closed=self.level > 0)


def document(story: Story) -> bytes:
    """The whole file. The same story gives the same bytes: no date is in it."""
    out = io.BytesIO()
    made = SimpleDocTemplate(
        out,
        pagesize=A4,
        leftMargin=MARGIN,
        rightMargin=MARGIN,
        topMargin=MARGIN,
        bottomMargin=MARGIN,
        title=words(story.title),
        author=f"memcheck {story.version}",
        subject=words(story.summary),
        lang="en",
        invariant=1,
    )

    def footer(canvas: Canvas, _: object) -> None:
        canvas.setFont(style.PLAIN, 7.5)
        canvas.setFillColor(colour("soft"))
        said = f"Predicted by memcheck {story.version} from plans alone: no GPU, no run."
        canvas.drawString(MARGIN + PADDING, MARGIN / 2, said)
        canvas.drawRightString(A4[0] - MARGIN - PADDING, MARGIN / 2, f"page {canvas.getPageNumber()}")

    made.build(list(pages(story)), onFirstPage=footer, onLaterPages=footer)
    return out.getvalue()


def pages(story: Story) -> list[Flowable]:
    """All flowables of the document, in the order of the pages."""
    found: list[Flowable] = [
        Paragraph("memcheck", style.BRAND),
        Paragraph(markup(story.title), style.TITLE),
        Paragraph(markup(story.summary), style.SOFT),
        Spacer(1, 6),
    ]
    found += [Paragraph(markup(f"Not readable: {path}: {why}"), style.BODY) for path, why in story.unreadable]
    several = len(story.plans) > 1
    if several:
        found += [OutlineEntry("Plans", "index", 0), *index(story)]
    for number, each in enumerate(story.plans, start=1):
        found += [PageBreak()] if several else []
        found += plan(each, f"plan-{number}")
    return found


def index(story: Story) -> list[Flowable]:
    """A row per plan, which leads to its page; all bars on one axis."""
    found = plan_index(story)
    heads = [Paragraph(head, style.HEADING) for head in ("Plan", "Verdict", "Memory")]
    heads.append(Paragraph("Used", style.NUMBER_HEADING))
    looks = [("LINEBELOW", (0, 0), (-1, -1), 0.4, colour("rule")), ("VALIGN", (0, 0), (-1, -1), "MIDDLE"), *CLOSE]
    sizes = [WIDTH * share for share in (0.35, 0.18, 0.36, 0.11)]
    rows = [heads, *map(entry, found.entries)]
    table = Grid(rows, colWidths=sizes, repeatRows=1, style=looks, hAlign="LEFT", splitInRow=1)
    return [Paragraph(CAPTION, style.SOFT), table, Spacer(1, 4), legend(found.keys), Paragraph(LINES, style.SOFT)]


def entry(item: IndexEntry) -> list[Flowable | str]:
    """One plan of the index."""
    name = f'<a href="#plan-{item.number}" color="{TEXT["link"].light}"><u>{markup(item.plan.name)}</u></a>'
    where = f'<font color="{TEXT["soft"].light}">{markup(item.where)}</font>'
    return [
        Paragraph(f"{name}<br/>{where}", style.CELL),
        Paragraph(tinted(item.plan.verdict.word, item.plan.verdict.tone), style.CELL),
        BarRow(item.bar, item.scale, WIDTH * 0.34, 9) if item.bar is not None else "",
        Paragraph(f"<b>{markup(item.plan.used)}</b>", style.NUMBER),
    ]


def legend(keys: tuple[str, ...]) -> Flowable:
    """The colours of bars with their names."""
    named = (f"{swatch(key)}{markup(spaced(key))}" for key in keys)
    return Paragraph(" &nbsp; ".join(named), style.SOFT)


def plan(story: PlanStory, anchor: str) -> list[Flowable]:
    """The pages about one plan: verdict, facts, charts, sections."""
    badge = tinted(story.verdict.word, story.verdict.tone)
    found: list[Flowable] = [
        OutlineEntry(story.name, anchor, 0),
        Paragraph(f"{markup(story.name)}&nbsp;&nbsp;{badge}", style.NAME),
        Paragraph(markup(story.path), style.SOFT),
        Paragraph(markup(story.lead), style.LEAD),
        Spacer(1, 4),
    ]
    found += [Big(picture, WIDTH) for picture in story.pictures]
    if story.advice:
        found.append(Paragraph(markup(story.advice), style.BODY))
    if story.facts:
        found.append(facts(story))
    for section in story.sections:
        found.append(CondPageBreak(LEAST_ROOM))
        found += [
            OutlineEntry(section.title, f"{anchor}-{section.id}", 1),
            Paragraph(markup(section.title), style.HEAD),
        ]
        for each in section.blocks:
            found += block(each, WIDTH)
    return found


def facts(story: PlanStory) -> Flowable:
    """Labels and values in a grid."""
    cells: list[list[Flowable] | str] = [
        [Paragraph(markup(label), style.SOFT), Paragraph(f"<b>{markup(value)}</b>", style.BODY)]
        for label, value in story.facts
    ]
    cells += [""] * (-len(cells) % FACTS_PER_ROW)
    rows = [cells[i : i + FACTS_PER_ROW] for i in range(0, len(cells), FACTS_PER_ROW)]
    looks = [("VALIGN", (0, 0), (-1, -1), "TOP"), *CLOSE]
    return Grid(rows, colWidths=[WIDTH / FACTS_PER_ROW] * FACTS_PER_ROW, style=looks, hAlign="LEFT", splitInRow=1)
