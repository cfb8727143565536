"""The steps of an answer: the check of a file as records and HTML sections, the quick parts first."""

from __future__ import annotations

import time
from collections.abc import Mapping

from memcheck import __version__
from memcheck.accounts.dossier import Dossier
from memcheck.accounts.estimate import Estimate
from memcheck.config.find import Gate
from memcheck.edge.screen import percent
from memcheck.errors import UsageError
from memcheck.judge import check_file
from memcheck.live.moves import Positions
from memcheck.live.replies import (
    Diagnostic,
    Figures,
    FileChange,
    First,
    PlanTab,
    RelatedPlace,
    RemedyEdits,
    SectionHead,
    TextPlace,
)
from memcheck.live.requests import Workspace
from memcheck.memory.overhead_terms import interval_basis
from memcheck.plan.finding import Finding, Location, Remedy
from memcheck.plan.places import Document
from memcheck.record import Record
from memcheck.report.html.document import HALVES, index, parts, section
from memcheck.report.story.blocks import PlanStory, Story
from memcheck.report.story.build import ids_of, story
from memcheck.report.story.remedies import slug
from memcheck.rules.result import PlanResult, Report
from memcheck.rules.types import RuleContext
from memcheck.what_if.dossier import rank_devices

ANSWER = ("lead", "bar", "advice", "facts")
"""Sections of the answer itself, which stand above all others."""
TITLES = {"index": "Plans"}


SLICE_S = 0.02
"""Seconds after which a search says how far it is, and whoever waits may end it."""


class Slices:
    """Says when the next step is due, so that a caller gets control back often and few messages are sent."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a slice has passed since the last time that it had."""
        now = time.monotonic()
        if now - self._last < SLICE_S:
            return False
        self._last = now
        return True


def quick_dossier(context: RuleContext, answer: Estimate, gate: Gate) -> Dossier:
    """The parts of a dossier that cost next to nothing: no other GPUs."""
    basis, cases = interval_basis(context.job)
    return Dossier(ranks=rank_devices(context, answer), gpus=(), basis=basis, cases=cases)


class CheckedFile(Record):
    """One file, checked."""

    path: str
    report: Report
    ids: dict[int, str]
    """The id of every plan and finding, by the identity of the record."""
    defects: tuple[str, ...]
    basis: tuple[str, int, Gate]
    """The path, the state of the workspace and the gate that the check was made with."""
    documents: tuple[Document, ...]
    """The plans as they are read, with everything that they take from other files."""

    def is_of(self, workspace: Workspace, path: str, gate: Gate) -> bool:
        """Whether this is what a check would find now: the same file, and the same bytes of all files."""
        return self.basis == (path, workspace.state, gate)

    def document(self, number: int) -> Document | None:
        """One plan as it is read; None where the text is no plan."""
        return next((each for each in self.documents if each.index == number), None)

    def plan(self, document: int) -> PlanResult:
        """The result of one document.

        Raises:
            UsageError: the file has no such document.
        """
        for each in self.report.plans:
            if each.document == document:
                return each
        count = len(self.report.plans)
        raise UsageError(f"`{self.path}` has no plan {document}", f"it has {count}, counted from 0")


def checked_file(workspace: Workspace, path: str, gate: Gate) -> CheckedFile:
    """Check a file of the workspace as ``memcheck check`` does, without the search for remedies.

    Raises:
        UsageError: there is no such file.
    """
    data = workspace.data(path)
    documents: list[Document] = []
    basis = (path, workspace.state, gate)
    gate = gate._replace(inventory=True, grounds=0, dossier=quick_dossier)
    with workspace.reading():
        results, traces = check_file(path, data, gate, documents)
    return as_checked(basis, results, traces, documents)


def as_checked(
    basis: tuple[str, int, Gate], results: list[PlanResult], traces: list[str], documents: list[Document]
) -> CheckedFile:
    """The results of a check as one record."""
    report = Report(version=__version__, plans=tuple(results))
    return CheckedFile(
        path=basis[0],
        report=report,
        ids=ids_of(report),
        basis=basis,
        defects=tuple(traces),
        documents=tuple(documents),
    )


def first(workspace: Workspace, checked: CheckedFile, document: int, edits: tuple[FileChange, ...] = ()) -> First:
    """The first step of an answer about one plan of a file. ``edits``: what the request changed.

    Raises:
        UsageError: the file has no such plan.
    """
    plan = checked.plan(document)
    place = checked.report.plans.index(plan)
    told = story(checked.report)
    found = told.plans[place]
    return First(
        path=checked.path,
        document=plan.document,
        name=plan.name,
        status=plan.status,
        verdict=found.verdict,
        lead=found.lead,
        used=found.used,
        figures=figures(plan),
        documents=tabs(checked, told),
        order=order(told, found),
        sections=sections(told, found),
        diagnostics=diagnostics(workspace, checked, plan),
        edits=edits,
        files=tuple(dict.fromkeys((checked.path, *(name for name in plan.sources if name in workspace)))),
        defects=checked.defects,
    )


def figures(plan: PlanResult) -> Figures | None:
    """The figures of a plan's estimate; None where it has none."""
    estimate = plan.estimate
    if estimate is None:
        return None
    low, high = estimate.needed_interval_bytes
    return Figures(
        needed_bytes=estimate.needed_bytes,
        needed_low_bytes=low,
        needed_high_bytes=high,
        seen_bytes=estimate.device_bytes,
        capacity_bytes=estimate.capacity_bytes,
        limit_bytes=int(estimate.capacity_bytes * min(plan.fail_above, 1.0)),
        host_bytes=estimate.host_bytes_per_node,
        gpus=plan.gpus,
    )


def tabs(checked: CheckedFile, told: Story) -> tuple[PlanTab, ...]:
    """Every plan of the file in a line."""
    lines = {each.index: each.lines[0] + 1 for each in checked.documents}
    return tuple(
        PlanTab(
            document=plan.document,
            name=plan.name,
            line=lines.get(plan.document, 1),
            verdict=each.verdict,
            used=percent(plan.estimate.utilization) if plan.estimate is not None else "",
        )
        for plan, each in zip(checked.report.plans, told.plans, strict=True)
    )


def order(told: Story, plan: PlanStory) -> tuple[SectionHead, ...]:
    """The sections of a plan's result, and the index of several plans before them."""
    above = ("index",) if len(told.plans) > 1 else ()
    halves = HALVES if {each.id for each in plan.sections} >= HALVES else frozenset()
    return (
        *(SectionHead(id=name, title=TITLES.get(name, ""), folded=False, half=False) for name in (*above, *ANSWER)),
        *(
            SectionHead(id=each.id, title=each.title, folded=each.folded, half=each.id in halves)
            for each in plan.sections
        ),
    )


def sections(told: Story, plan: PlanStory) -> dict[str, str]:
    """The HTML of every section, as the report has it."""
    found: dict[str, str] = {"index": index(told)} if len(told.plans) > 1 else {}
    found.update(zip(ANSWER, parts(plan), strict=True))
    halves = HALVES if {each.id for each in plan.sections} >= HALVES else frozenset()
    for each in plan.sections:
        found[each.id] = section(each, f"plan-{each.id}", plan.name, half=each.id in halves)
    return found


def diagnostics(workspace: Workspace, checked: CheckedFile, plan: PlanResult) -> tuple[Diagnostic, ...]:
    """The findings of a plan at their places."""
    places = Places(workspace, plan.sources)
    return tuple(diagnostic(plan, each, checked.ids.get(id(each), ""), places) for each in plan.findings)


class Places:
    """Places in the files of a workspace. ``sources``: lines of files that are in none."""

    def __init__(self, workspace: Workspace, sources: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._workspace, self._sources = workspace, sources or {}
        self._known: dict[str, Positions] = {}

    def of(self, path: str) -> Positions:
        """The positions of one file."""
        found = self._known.get(path)
        if found is None:
            if path in self._workspace:
                text = self._workspace.data(path).decode("utf-8", "replace").removeprefix("\ufeff")
            else:
                text = "\n".join(self._sources.get(path, ()))
            found = self._known[path] = Positions(text)
        return found

    def at(self, where: Location) -> tuple[TextPlace, TextPlace]:
        """Both ends of a location."""
        return self.of(where.path).span(where.span)

    def change(self, path: str, edits: tuple[object, ...]) -> FileChange:
        """Edits of a file as an editor makes them."""
        positions = self.of(path)
        return FileChange(path=path, edits=tuple(positions.edit(each) for each in edits))  # type: ignore[arg-type]

    def remedy(self, remedy: Remedy, path: str) -> RemedyEdits:
        """A remedy of the plan in the file ``path``, with its edits, under the id that the report's HTML has for it."""
        return RemedyEdits(
            id=f"remedy-{slug(remedy)}",
            title=remedy.title,
            changes=remedy.set,
            edits=tuple(self.change(file.path, file.edits) for file in remedy.files(path)),
        )


def diagnostic(plan: PlanResult, finding: Finding, id: str, places: Places) -> Diagnostic:
    """One finding with the places of an editor."""
    start, end = places.at(finding.location)
    related = []
    for label, where in finding.related:
        begin, last = places.at(where)
        related.append(RelatedPlace(path=where.path, start=begin, end=last, label=label or where.note))
    own = places.of(plan.path)
    return Diagnostic(
        id=id,
        code=finding.code,
        name=finding.name,
        severity=finding.severity,
        message=finding.message,
        help=finding.help,
        path=finding.location.path,
        start=start,
        end=end,
        pointer=finding.pointer,
        related=tuple(related),
        fix=tuple(own.edit(each) for each in finding.fix) if plan.fixable(finding) else (),
    )
