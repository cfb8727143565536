"""What takes longer than a verdict: bytes per line, changes that help, other GPUs. Control is given back in between.

Bytes that each line of a plan is responsible for: the plan is estimated once more with the key at a neutral value.

The figures do not add up to the whole, because keys act together. Each says what one change alone would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from memcheck.accounts.dossier import Dossier
from memcheck.accounts.estimate import Estimate
from memcheck.config.find import QUICK, Gate
from memcheck.edge.screen import gib
from memcheck.edge.screen import value as shown
from memcheck.judge import check_document, check_file
from memcheck.live.answer import CheckedFile, Places, Slices, as_checked, diagnostics, order, quick_dossier, sections
from memcheck.live.choices import stated_value, wish
from memcheck.live.form import USUAL
from memcheck.live.moves import Positions
from memcheck.live.replies import Gpus, GpuShare, LineBytes, Lines, RemedySteps, Searching
from memcheck.live.requests import Workspace
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import SHORT
from memcheck.record import Record
from memcheck.report.story.build import story
from memcheck.report.story.remedies import all_remedies, card
from memcheck.rules.result import PlanResult
from memcheck.rules.types import RuleContext
from memcheck.what_if import with_remedies
from memcheck.what_if.compare import DATA_CENTRE
from memcheck.what_if.dossier import each_gpu
from memcheck.what_if.points import Evaluator, Point
from memcheck.what_if.search import attach

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "parallelism.zero_stage": (0,),
    "parallelism.tensor": (1,),
    "parallelism.context": (1,),
    "parallelism.pipeline": (1,),
    "parallelism.expert": (1,),
    "parallelism.virtual_stages": (1,),
    "parallelism.sequence": (False,),
    "parallelism.reshard_after_forward": (True,),
    "parallelism.gradient_sync": ("every",),
    "parallelism.gradient_as_bucket_view": (False,),
    "training.method": ("full",),
    "training.precision": ("fp32",),
    "training.optimizer": ("adamw",),
    "training.optimizer.offload": ("none",),
    "training.optimizer.in_backward": (False,),
    "training.activation_checkpointing": ("none",),
    "training.activation_checkpointing.offload": ("none",),
    "training.attention": ("eager", "sdpa"),
    "training.loss": ("standard",),
    "training.gradient_accumulation_steps": (1,),
    "training.reference": ("resident",),
    "training.offload.parameters": ("none",),
    "training.compile": (False,),
    "training.kernels.liger": (False,),
    "inference.weights": ("bf16",),
    "inference.kv_cache": ("bf16",),
    "inference.tensor": (1,),
    "inference.pipeline": (1,),
}
"""Values of keys that ask for nothing; of several, the first that is legal and not the plan's own."""
HALVED = (
    "training.micro_batch_size",
    "training.sequence_length",
    "training.longest_row",
    "training.lora.rank",
    "training.evaluation.micro_batch_size",
    "inference.batch_size",
    "inference.context_length",
    "inference.chunk",
    "hardware.nodes",
    "hardware.gpus_per_node",
)
"""Keys without a value that asks for nothing: half of what the plan states."""
UNNOTICED_BYTES = 2**20
"""Differences below this are none that a figure in GiB could show."""


def line_bytes(document: Document, gate: Gate, positions: Positions) -> Iterator[LineBytes | None]:
    """What each stated key does to the need of the fullest GPU; None for one that cannot be told, before the next."""
    evaluator = Evaluator(document, gate)
    here = evaluator.point({})
    if not here.estimated:
        return
    for key in (*NEUTRAL, *HALVED):
        now = stated_value(document.values, key)
        place = _place(document, key)
        if now is None or place is None:
            continue
        found = None
        for other in neutral(key, now):
            changes, removed = wish(document, {key: other})
            there = evaluator.point(changes) if changes and not removed else None
            yield None
            if there is not None and there.estimated:
                found = _told(document, key, other, here, there, positions)
                break
        yield found


def neutral(key: str, now: object) -> tuple[object, ...]:
    """The values to compare the present one with."""
    if key in NEUTRAL:
        return tuple(each for each in NEUTRAL[key] if each != now)
    halves = isinstance(now, int) and not isinstance(now, bool) and now >= 2
    return (now // 2,) if halves else ()  # type: ignore[operator]  # a whole number


def _place(document: Document, key: str) -> str | None:
    """The pointer of a key that the plan's own file states; None where it does not."""
    pointer = "/" + key.replace(".", "/")
    if pointer not in document.marks and SHORT.get(key.rpartition(".")[0]) == key.rpartition(".")[2]:
        pointer = pointer.rpartition("/")[0]
    if pointer not in document.marks or document.locate(pointer).path != document.path:
        return None
    return pointer


def _told(document: Document, key: str, other: object, here: Point, there: Point, positions: Positions) -> LineBytes:
    """What the key does, in bytes and in words."""
    more = there.needed_bytes - here.needed_bytes
    word = f"half of it, {shown(other)}" if key in HALVED else shown(other)
    if abs(more) < UNNOTICED_BYTES:
        text = f"the same need as with {word}"
    elif key in HALVED:
        text = f"{gib(abs(more))} GiB {'less' if more < 0 else 'more'} with {word}"
    else:
        text = f"{'saves' if more > 0 else 'takes'} {gib(abs(more))} GiB against {word}"
    pointer = _place(document, key) or ""
    return LineBytes(
        key=key,
        place=positions.span(document.locate(pointer).span)[0],
        other=other,
        saved_bytes=more,
        text=text,
    )


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
    """The plan on other GPUs: a section of the data centre's, and a share for each that the form offers first."""
    names = tuple(dict.fromkeys((*DATA_CENTRE, *USUAL)))
    slices = Slices()
    for context, answer in captured(asking).facts:
        found = []
        for each in asking.workspace.while_reading(each_gpu(context, answer, asking.gate, names)):
            found.append(each)
            if slices.is_due:
                yield Searching(part="gpus", tried=len(found), fits=0)
        plan = asking.plan
        dossier = quick_dossier(context, answer, asking.gate)._replace(
            gpus=(found[0], *(each for each in found[1:] if each.gpu in DATA_CENTRE))
        )
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
