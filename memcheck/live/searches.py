"""What takes longer than a verdict: bytes per line, changes that help, other GPUs. Control is given back in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from memcheck.accounts.dossier import Dossier
from memcheck.accounts.estimate import Estimate
from memcheck.config.gate import QUICK, Gate
from memcheck.judge import check_document, check_file
from memcheck.live.answer import CheckedFile, Places, Slices, as_checked, diagnostics, order, quick_dossier, sections
from memcheck.live.lines import line_bytes
from memcheck.live.replies import Gpus, GpuShare, Lines, RemedySteps, Searching
from memcheck.live.workspace import Workspace
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.record import Record
from memcheck.report.story.build import story
from memcheck.report.story.remedies import all_remedies, card
from memcheck.result import PlanResult
from memcheck.rules.types import RuleContext
from memcheck.what_if import with_remedies
from memcheck.what_if.dossier import each_gpu
from memcheck.what_if.search import attach

FOUND = ("advice", "findings", "remedies", "certainty")
"""Sections that a search for remedies changes."""


class Asking(Record):
    """The plan that a search is about."""

    workspace: Workspace
    checked: CheckedFile
    document: Document
    gate: Gate

    @property
    def plan(self) -> PlanResult:
        """The result that the first step was made of."""
        return self.checked.plan(self.document.index)


class Captured:
    """Keeps what a check hands to the search for remedies, and searches nothing."""

    def __init__(self) -> None:
        self.found: list[tuple[list[Finding], RuleContext]] = []
        self.facts: list[tuple[RuleContext, Estimate]] = []

    def remedies(self, findings: list[Finding], context: RuleContext) -> list[Finding]:
        """Keep the findings about an amount of memory, and the context."""
        self.found.append((findings, context))
        return findings

    def dossier(self, context: RuleContext, answer: Estimate, gate: Gate) -> Dossier:
        """Keep what other GPUs are tried with."""
        self.facts.append((context, answer))
        return quick_dossier(context, answer, gate)


def captured(asking: Asking) -> Captured:
    """What a search for this plan starts from."""
    kept = Captured()
    gate = asking.gate._replace(remedies=kept.remedies, dossier=kept.dossier, grounds=0)
    with asking.workspace.reading():
        check_document(asking.document, gate)
    return kept


def lines(asking: Asking) -> Iterator[Record]:
    """The bytes that each line is responsible for."""
    slices = Slices()
    positions = Places(asking.workspace).of(asking.checked.path)
    found = []
    for each in asking.workspace.while_reading(line_bytes(asking.document, asking.gate, positions)):
        if each is not None:
            found.append(each)
        if slices.is_due:
            yield Searching(part="lines", tried=len(found), fits=0)
    yield Lines(lines=tuple(sorted(found, key=lambda each: each.place)))


def remedies(asking: Asking) -> Iterator[Record]:
    """Changes that help, each re-computed: how far the search is, then all of them with their edits."""
    slices = Slices()
    for findings, context in captured(asking).found:
        for question in dict.fromkeys(attach.question_of(each, context) for each in findings):
            if not question or attach.SEARCHES.known(question, context) is not None:
                continue
            asked = attach.RemedySearch(question, context)
            for _ in asking.workspace.while_reading(kept(asked, question, context)):
                if slices.is_due:
                    yield Searching(part="remedies", tried=asked.tried, fits=len(asked.so_far))
    yield _with_remedies(asking)


def kept(asked: attach.RemedySearch, question: str, context: RuleContext) -> Iterator[object]:
    """The steps of a search for remedies, whose answer the next check of the plan finds."""
    attach.SEARCHES.keep(question, context, (yield from asked.steps()))


def _with_remedies(asking: Asking) -> RemedySteps:
    """The plan as ``memcheck check`` has it, with what was searched for."""
    path, gate = asking.checked.path, asking.gate
    documents: list[Document] = []
    gate = gate._replace(inventory=True, grounds=QUICK, dossier=quick_dossier, remedies=with_remedies)
    with asking.workspace.reading():
        results, traces = check_file(path, asking.workspace.data(path), gate, documents)
    checked = as_checked(asking.checked.basis, results, traces, documents)
    plan = checked.plan(asking.document.index)
    told = story(checked.report)
    found = told.plans[checked.report.plans.index(plan)]
    whole = sections(told, found)
    places = Places(asking.workspace, plan.sources)
    return RemedySteps(
        order=order(told, found),
        sections={name: whole.get(name, "") for name in FOUND},
        remedies=tuple(places.remedy(each, path) for each in all_remedies(plan)),
        diagnostics=diagnostics(asking.workspace, checked, plan),
    )


def gpus(asking: Asking) -> Iterator[Record]:
    """The plan on other GPUs."""
    slices = Slices()
    for context, answer in captured(asking).facts:
        found = []
        for each in asking.workspace.while_reading(each_gpu(context, answer, asking.gate)):
            found.append(each)
            if slices.is_due:
                yield Searching(part="gpus", tried=len(found), fits=0)
        plan = asking.plan
        dossier = quick_dossier(context, answer, asking.gate)._replace(gpus=tuple(found))
        whole = asking.checked.report
        others = tuple(each._replace(dossier=dossier) if each is plan else each for each in whole.plans)
        told = story(whole._replace(plans=others))
        shown = told.plans[whole.plans.index(plan)]
        cards = (card(plan, each) for each in found)
        yield Gpus(
            order=order(told, shown),
            sections={"gpus": sections(told, shown)["gpus"]},
            gpus=tuple(
                GpuShare(
                    gpu=one.gpu,
                    word=each.word,
                    tone=each.tone,
                    share=each.figure,
                    needed_bytes=one.needed_bytes,
                    capacity_bytes=one.capacity_bytes,
                    own=one is found[0],
                )
                for one, each in zip(found, cards, strict=True)
            ),
        )


PARTS: Mapping[str, Callable[[Asking], Iterator[Record]]] = {"lines": lines, "remedies": remedies, "gpus": gpus}
"""What can be searched, in the order in which it is."""
