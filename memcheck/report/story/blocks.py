"""Everything that a report shows beyond a plan that passes: findings, remedies, ledgers, charts, tables, sections.

Ids are unique within a plan and stay while their subject does. ``schemas/story.schema.json`` is made of these records.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.edge.screen import gib, percent
from memcheck.record import Record
from memcheck.report.story import Fitting, Gauge, PlanHead, PlanSummary, Prose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.plan.finding import Edit, FileEdits


class Fact(Record):
    """A value under its name."""

    label: str
    text: str
    tone: str = "strong"
    """The tone of the label."""


class Facts(Record):
    """Values under their names, one below the other."""

    rows: tuple[Fact, ...]


class Item(Record):
    """A line of a list, with what belongs to it."""

    head: Prose
    blocks: tuple[Block, ...]


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
    """The capacity, which is drawn as a line; beyond the axis it is left out."""
    limit_bytes: int = 0
    """The plan's own limit, which is drawn as a line; 0: no line."""


class Chart(Record):
    """Bars on one scale: side by side as rows, or upright as moments after each other."""

    id: str
    title: str
    bars: tuple[Bar, ...]
    scale: Scale
    upright: bool = False
    interval_bytes: tuple[int, int] = (0, 0)
    """Drawn below a single bar."""
    capacity_name: str = "capacity"
    """What the line of a single bar is called."""


class ColumnNote(Record):
    """A sentence about columns of a table, which is shown with them and not without."""

    text: str
    shown: tuple[str, ...] = ()
    """Heads of the columns that the sentence needs."""
    hidden: tuple[str, ...] = ()
    """Heads of the columns that another sentence covers, if they are shown."""
    tone: str = ""
    own: bool = False
    """Whether the sentence explains a sign that only a screen shows."""

    def about(self, shown: Sequence[str], dropped: Sequence[str]) -> str:
        """The sentence for a table with these columns; empty where it is not about them.

        ``{}`` in the text stands for the columns that have no room: without such a column there is no sentence.
        """
        if "{}" in self.text:
            return self.text.replace("{}", ", ".join(dropped)) if dropped else ""
        return self.text if set(self.shown) <= set(shown) and not set(self.hidden) & set(shown) else ""


NO_ROOM = ColumnNote("no room for {}: widen the terminal, or take --format json.")


class Table(Record):
    """Rows under heads; the first cell of a row names the subject of the row."""

    caption: str
    heads: tuple[str, ...]
    """Empty: the table has no heads."""
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    """Indices of the columns of figures, which are aligned to the right."""
    keys: tuple[str, ...] = ()
    """A component per row; the report shows its colour before the row."""
    foot: tuple[tuple[str, ...], ...] = ()
    foot_keys: tuple[str, ...] = ()
    """A component per row of the foot, or nothing."""
    optional: tuple[int, ...] = ()
    """Columns that a narrow screen drops, the least important first."""
    code: tuple[int, ...] = ()
    """Indices of the columns of identifiers, which are set as code."""
    tones: tuple[str, ...] = ()
    """A tone per row; empty: plain rows."""
    groups: tuple[str, ...] = ()
    """A heading per row, which is shown once for the rows that share it; empty: no headings."""
    notes: tuple[ColumnNote, ...] = ()
    """What the columns mean, and what else there is to say of the table."""
    one_note: bool = False
    """Whether all notes are one paragraph."""
    flow: str = ""
    """What a screen without room does: ``wrap`` or ``cut`` the last column, or omit the ``start`` of identifiers."""
    indent: int = 0
    """Columns on the left of the table, on a screen."""
    short_heads: tuple[str, ...] = ()
    """Heads for a screen that the table is too wide for."""
    short_notes: tuple[str, ...] = ()
    """What the short heads stand for."""


class LedgerRow(Record):
    """One amount of a ledger."""

    label: str
    bytes: int
    key: str = ""
    """The component of memory; empty for a sum."""


class Ledger(Record):
    """Parts that add up to a need, what there is, and what is left or missing."""

    title: str
    """The memory that the ledger is about."""
    caption: str
    """The moment that the figures are of."""
    share_head: str
    """What the shares are of: ``of capacity``."""
    parts: tuple[LedgerRow, ...]
    needed: LedgerRow
    capacity: LedgerRow
    cache: LedgerRow | None = None
    """What the allocator keeps beyond the need while nothing else wants it."""
    tone: str = "good"
    note: str = ""

    @property
    def slack(self) -> LedgerRow:
        """What is left, or missing."""
        found = self.capacity.bytes - self.needed.bytes
        return LedgerRow("missing" if found < 0 else "left", abs(found))

    @property
    def fits(self) -> bool:
        """Whether nothing is missing."""
        return self.needed.bytes <= self.capacity.bytes

    def share(self, row: LedgerRow) -> str:
        """An amount as a percentage of the capacity; empty without a capacity."""
        return percent(row.bytes / self.capacity.bytes) if self.capacity.bytes else ""

    @property
    def foot(self) -> tuple[LedgerRow, ...]:
        """The rows below the parts: the need, the cache where there is some, the capacity, and what is left."""
        return tuple(filter(None, (self.needed, self.cache, self.capacity, self.slack)))

    def as_table(self) -> Table:
        """The ledger as a table, with a row per amount."""

        def cells(row: LedgerRow) -> tuple[str, str, str]:
            return row.label, gib(row.bytes), self.share(row)

        return Table(
            self.caption,
            ("Component", "GiB", self.share_head),
            tuple(map(cells, self.parts)),
            right=(1, 2),
            keys=tuple(row.key for row in self.parts),
            foot=tuple(map(cells, self.foot)),
            foot_keys=tuple(row.key for row in self.foot),
        )


class Card(Record):
    """One of several alternatives, such as one GPU: title, verdict, lines."""

    id: str
    title: str
    word: str
    tone: str
    lines: tuple[str, ...]
    figure: str = ""
    chart: Chart | None = None


class Cards(Record):
    """Alternatives that are shown next to each other, one card each."""

    cards: tuple[Card, ...]


class KeyChange(Record):
    """A key of the plan with its value now and then."""

    key: str
    before: str
    """The value as the plan states it, or what its silence means."""
    after: str
    value: object = None
    """The new value as data."""
    written: str = ""
    """The change as the owner of a framework's config writes it, or that the key is one of plans."""


class Measure(Record):
    """A figure of a plan, before and after a remedy."""

    name: str
    title: str
    """The name for a reader who does not see the figure before next to it."""
    before: str
    """Empty where the plan has no estimate."""
    after: str


class Cost(Record):
    """A cost of a change in words."""

    tone: str
    text: str


class RemedyStep(Record):
    """A change that helps: what to write, what it costs, memory before and after."""

    id: str
    title: str
    group: str
    """What the change asks for: ``same_hardware_same_result``, ``same_hardware_other_result`` or ``other_hardware``."""
    asks: str
    """The group in words."""
    changes: tuple[KeyChange, ...]
    measures: tuple[Measure, ...]
    """The figures that the change moves, the one that fails the plan first."""
    effect: str
    """All measures on one line."""
    time: str
    """The change of the time of the work, such as ``+18%``."""
    purpose: str
    """What the change is for among the others; empty for most."""
    takes: tuple[str, ...]
    """What the change takes in addition to time, in a word or two."""
    paid: str
    """Host memory that is paid for room on the GPU; empty where it is none."""
    costs: tuple[Cost, ...]
    """Time, takes and paid in sentences."""
    tone: str
    """``good`` where the changed plan stays within its limits."""
    charts: tuple[Chart, ...] = ()
    """Before and after, of each memory that matters."""
    edits: tuple[FileEdits, ...] = ()
    """The edits that write the change, for each file; empty where no edit does."""


class Remedies(Record):
    """Changes by what they ask for, those that take least first."""

    id: str
    title: str
    steps: tuple[RemedyStep, ...]
    more: str = ""
    """What to say of the steps that have no room; their number replaces ``{}``."""
    layout: str = "cards"
    """How much of each step is shown: ``cards``, ``short``, ``long`` or ``ranked``."""
    first: int = 1
    """The number of the first step; 0: without numbers."""

    def groups(self) -> list[tuple[str, int, tuple[RemedyStep, ...]]]:
        """The steps of each group with its words and the number of its first step."""
        found: list[tuple[str, int, tuple[RemedyStep, ...]]] = []
        for number, step in enumerate(self.steps, self.first):
            if found and found[-1][2][0].group == step.group:
                asks, first, steps = found[-1]
                found[-1] = (asks, first, (*steps, step))
            else:
                found.append((step.asks, number, (step,)))
        return found


class SourceMark(Record):
    """A place of a source line that is marked, with the note about it."""

    column: int
    """The first character of the place, from 1."""
    end_column: int
    """The character after the last one; on this line, where the place goes on."""
    label: str
    primary: bool
    """Whether this is the finding's own place."""
    goes_on: bool = False
    """Whether the place ends on a later line."""


class SourceLine(Record):
    """A line of a file, with its marks; a line without any fills a gap of one line."""

    number: int
    text: str | None
    """None where the file has no such line."""
    marks: tuple[SourceMark, ...]


class SourceFile(Record):
    """The lines of one file that a finding is about."""

    path: str
    line: int
    column: int
    """The place that the file's heading names."""
    lines: tuple[SourceLine, ...]
    """Lines in order; empty where the finding is about the whole file, or where the file could not be read."""


class Excerpt(Record):
    """A finding with the lines that it is about."""

    id: str
    severity: str
    """``error``, ``warning`` or ``info``."""
    tone: str
    code: str
    name: str
    message: str
    files: tuple[SourceFile, ...]
    """The finding's own file first."""
    whole_file: bool = False
    """Whether the finding is about its file as a whole: the first character then stands for all of it."""
    help: str = ""
    fix: tuple[Edit, ...] = ()
    """The edits that ``--fix`` makes in the plan's own file; empty where it makes none."""
    brief: str = ""
    """The message for a single line, where the message is long."""


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
    """The arithmetic of every component that holds memory at the peak."""

    title: str
    formulas: tuple[ComponentFormula, ...]


class GridCell(Record):
    """One point of a grid."""

    figure: str
    """How full the memory is, or the code of the rule that refuses the point."""
    tone: str
    """The verdict, with the degree: ``fits-50``, ``uncertain``, ``above-limit``, ``too-large-120``, ``refused``."""
    rate: str = ""
    """Tokens per second and GPU; empty without a time."""
    detail: str = ""


class Grid(Record):
    """A heat map over two keys of a plan."""

    id: str
    title: str
    """The values of the other keys."""
    caption: str
    row_key: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[GridCell, ...], ...]
    """A tuple per row."""
    summary: str = ""
    opened: bool = True
    """Whether the map is shown without being asked for."""

    def as_table(self) -> Table:
        """The map with a row per value of the row's key; a point is as full as its figure says."""
        cells = (tuple(cell.figure for cell in row) for row in self.cells)
        return Table(
            caption=self.title or self.caption,
            heads=(self.row_key, *self.columns),
            rows=tuple((name, *row) for name, row in zip(self.rows, cells, strict=True)),
            right=tuple(range(1, len(self.columns) + 1)),
        )


class Quantity(Record):
    """A figure that subjects are compared by."""

    name: str
    better: str = ""
    """``low`` or ``high``; empty where neither is better."""
    unit: str = ""


class Compared(Record):
    """One subject of a comparison: a plan, a GPU, or one on the other."""

    label: str
    figures: tuple[str, ...]
    """A figure per quantity, as it is printed; ``-`` where there is none."""
    values: tuple[float | None, ...] = ()
    """The figures as numbers; empty where they are not known."""
    tone: str = ""
    name: str = ""
    """The plan that is compared."""
    group: str = ""
    """A heading for the subjects of that plan; empty where there is a single plan."""
    own: bool = False
    """Whether the subject is the plan as it is written."""


class Comparison(Record):
    """Plans or GPUs by quantities."""

    id: str
    subject: str
    """What the subjects are: ``GPU``."""
    quantities: tuple[Quantity, ...]
    subjects: tuple[Compared, ...]
    own_mark: str = ""
    """What follows the label of a plan as it is written, as a sign and in words."""
    own_words: str = ""
    optional: tuple[int, ...] = ()
    """Columns that a narrow screen drops, the least important first; column 0 is the subject."""
    notes: tuple[ColumnNote, ...] = ()
    """What the quantities mean."""

    @property
    def heads(self) -> tuple[str, ...]:
        """The subject and the name of every quantity."""
        return (self.subject, *(each.name for each in self.quantities))

    def as_table(self) -> Table:
        """The comparison with a row per subject."""
        grouped = any(each.group for each in self.subjects)
        return Table(
            caption="",
            heads=self.heads,
            rows=tuple(
                (f"{each.label} {self.own_mark}" if each.own else each.label, *each.figures) for each in self.subjects
            ),
            right=tuple(range(2, len(self.heads))),
            optional=self.optional,
            tones=tuple(each.tone for each in self.subjects),
            groups=tuple(each.group for each in self.subjects) if grouped else (),
            notes=self.notes,
            one_note=True,
        )

    def best(self, quantity: int) -> tuple[int, ...]:
        """Indices of the subjects that are best in a quantity; none where it is not comparable."""
        better = self.quantities[quantity].better
        known = [(each.values[quantity], n) for n, each in enumerate(self.subjects) if each.values]
        found = [(number, n) for number, n in known if number is not None]
        if not better or not found:
            return ()
        top = (min if better == "low" else max)(number for number, _ in found)
        return tuple(n for number, n in found if number == top)


Block = (
    Chart
    | Table
    | Cards
    | Remedies
    | Excerpts
    | Formulas
    | Prose
    | Fitting
    | Facts
    | PlanHead
    | PlanSummary
    | Item
    | Gauge
    | Ledger
    | Excerpt
    | Grid
    | Comparison
)


class Section(Record):
    """Blocks under a heading."""

    id: str
    """For addresses: letters and hyphens."""
    title: str
    blocks: tuple[Block, ...]
    folded: bool = False
    """Shown on demand where the medium can."""


class Verdict(Record):
    """The answer on a plan in a word or two."""

    word: str
    tone: str
    """``good``, ``warn``, ``bad``, or ``note`` for what is accepted."""
    fails: bool = False
    """Whether something else than the need fails the plan."""


class PlanFact(Record):
    """A fact about a plan."""

    label: str
    text: str


class UnreadablePath(Record):
    """A path that could not be read."""

    path: str
    reason: str


class PlanStory(Record):
    """The report on one plan: verdict, facts, charts and sections, as plain text and numbers."""

    id: str
    name: str
    path: str
    """The file, and the number of the document where the file has several."""
    status: str
    """What the check makes of the plan: ``passed``, ``failed``, or ``error`` where nothing could be estimated."""
    verdict: Verdict
    lead: str
    """The answer in a sentence."""
    advice: str
    """The first thing to do, or nothing."""
    facts: tuple[PlanFact, ...]
    """The figures that people ask for first, and what runs where."""
    pictures: tuple[Chart, ...]
    """The bar that says it all: of the memory that decides, then of the other one."""
    used: str
    """How full that memory is."""
    sections: tuple[Section, ...]
    page_link: str = ""
    """The address that opens the plan in the page; empty where no page is configured."""


class Story(Record):
    """A whole report."""

    title: str
    summary: str
    plans: tuple[PlanStory, ...]
    unreadable: tuple[UnreadablePath, ...]
    version: str
