"""What a section is made of.

Text is plain: each renderer escapes it. Tones are ``good``, ``warn``, ``bad`` and ``note``.
"""

from __future__ import annotations

from memcheck.record import Record
from memcheck.report.verdict import Verdict


class Segment(Record):
    """A stretch of a bar."""

    key: str
    """A component of memory, or a tone."""
    bytes: int


class Bar(Record):
    """A bar of the chart: stacked segments, each with its bytes."""

    label: str
    segments: tuple[Segment, ...]
    figure: str
    """The sum of the bar's segments as it is printed, such as ``74.9 GiB``."""
    note: str = ""

    @property
    def bytes(self) -> int:
        """The sum of the segments' bytes."""
        return sum(segment.bytes for segment in self.segments)


class Scale(Record):
    """What bars are drawn against."""

    full_bytes: int
    """The end of the axis."""
    capacity_bytes: int
    """Where the capacity line stands; beyond the axis it is left out."""
    limit_bytes: int = 0
    """Where the plan's own limit stands; 0: no line."""


class Chart(Record):
    """Bars on one scale: side by side as rows, or upright as moments after each other."""

    title: str
    bars: tuple[Bar, ...]
    scale: Scale
    upright: bool = False
    interval_bytes: tuple[int, int] = (0, 0)
    """Drawn below a single bar."""
    capacity_name: str = "capacity"
    """What the line of a single bar is called."""


class Table(Record):
    """Rows under heads; the first cell of a row is what the row is about."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    """Indices of the columns of figures, which are aligned to the right."""
    keys: tuple[str, ...] = ()
    """A component per row; the report shows its colour before the row."""
    foot: tuple[tuple[str, ...], ...] = ()
    foot_keys: tuple[str, ...] = ()
    """A component per row of the foot, or nothing."""
    optional: tuple[int, ...] = ()
    """Columns that a narrow screen does without."""
    code: tuple[int, ...] = ()
    """Indices of the columns of identifiers, which are set as code."""


class Card(Record):
    """One of several alternatives, such as one GPU: title, verdict, lines."""

    title: str
    word: str
    tone: str
    lines: tuple[str, ...]
    figure: str = ""
    chart: Chart | None = None


class Cards(Record):
    """Alternatives that are shown next to each other, one card each."""

    cards: tuple[Card, ...]


class RemedyStep(Record):
    """A change that helps: what to write, what it costs, memory before and after."""

    title: str
    changes: tuple[tuple[str, str, str], ...]
    """Key, value now, value then."""
    costs: tuple[tuple[str, str], ...]
    """The costs of the remedy, each as its tone and its words."""
    charts: tuple[Chart, ...]
    """Before and after, of each memory that matters."""


class RemedySteps(Record):
    """The changes of one group, those that take least first."""

    steps: tuple[RemedyStep, ...]
    title: str = ""
    """What the changes of the group ask for."""
    first: int = 1
    """The number of the first of them."""


class Excerpt(Record):
    """A finding with the lines that it is about."""

    tone: str
    head: str
    message: str
    source: str
    """Lines with their numbers and marks, coloured by the terminal's escapes."""
    help: str = ""


class Excerpts(Record):
    """Findings, the gravest first."""

    excerpts: tuple[Excerpt, ...]


class ComponentFormula(Record):
    """The arithmetic of one component of memory: formula, numbers, source."""

    key: str
    name: str
    figure: str
    lines: tuple[str, ...]
    """Lines of the formula, and of the same formula with numbers."""
    source: str


class Formulas(Record):
    """All that are alive at the peak."""

    formulas: tuple[ComponentFormula, ...]


class Prose(Record):
    """A paragraph of plain text."""

    text: str


Block = Chart | Table | Cards | RemedySteps | Excerpts | Formulas | Prose


class Section(Record):
    """Blocks under a heading."""

    key: str
    """For addresses: letters and hyphens."""
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False
    """Shown on demand where the medium can."""


class PlanStory(Record):
    """The report on one plan: verdict, facts, charts and sections, as plain text and numbers."""

    name: str
    path: str
    verdict: Verdict
    lead: str
    """The answer in a sentence."""
    advice: str
    """The first thing to do, or nothing."""
    facts: tuple[tuple[str, str], ...]
    """Facts about the plan, each as a label and a value."""
    pictures: tuple[Chart, ...]
    """The bar that says it all: of the memory that decides, then of the other one."""
    used: str
    """How full that memory is."""
    sections: tuple[Section, ...]


class Story(Record):
    """A whole report, which the HTML and the PDF renderer lay out."""

    title: str
    summary: str
    plans: tuple[PlanStory, ...]
    unreadable: tuple[tuple[str, str], ...]
    """Files that could not be read, each as its path and the reason."""
    version: str
