"""What a rule is, what it looks at, where in the text its findings point."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcheck.accounts.estimate import Estimate
from memcheck.errors import UnsupportedError
from memcheck.job.framework import Framework
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import Resolved
from memcheck.job.types import InferenceJob, Layout, TrainingJob
from memcheck.memory.fit import host_capacity
from memcheck.models.types import Architecture, Rough
from memcheck.plan import finding as codes
from memcheck.plan.finding import Code, Finding, Location, Span
from memcheck.plan.places import Document
from memcheck.plan.types import Plan, PolicySpec
from memcheck.record import Record
from memcheck.rules import GATE


def place(document: Document, pointer: str) -> Location:
    """Return a location on one line: the value if it fits on one, else its key, else the nearest key above that is
    written.

    Reports underline what they are given, and GitHub drops columns of regions over several lines.
    """
    while pointer and pointer not in document.marks:
        pointer = pointer.rpartition("/")[0]
        mark = document.marks.get(pointer)
        if mark is not None and mark.key is not None:
            return mark.key
    if not pointer:
        pointer = "/memcheck" if "/memcheck" in document.marks else ""
    mark = document.marks[pointer]
    span = mark.value.span
    if span.line == span.end_line:
        return mark.value
    if mark.key is not None:
        return mark.key
    first_line = span._replace(end_line=span.line, end_column=span.column + 1)
    return mark.value._replace(span=first_line)


def stated(document: Document, *pointers: str) -> str:
    """Return the first of several pointers that the plan writes, or the first one."""
    for pointer in pointers:
        if is_written(document, pointer):
            return pointer
    return pointers[0]


def is_written(document: Document, pointer: str) -> bool:
    """Say whether a key has a place of its own, in the plan or in the config that it is taken from.

    What a config leaves to its framework has a mark as well: the place where the config is named.
    """
    mark = document.marks.get(pointer)
    return mark is not None and (mark.key is not None or mark.used_at is not None)


DEFAULT_LOCKED_RULES = ("MEM1", "MEM6")
"""Memory and policy: what a comment in a plan may not hide under ``locked``."""


class Governance(Record):
    """The table ``[policy]`` of a configuration. None, and an empty list, means: not laid down."""

    locked: bool = False
    """Plans may be stricter than the configured limits and overhead, and no milder."""
    locked_rules: tuple[str, ...] = DEFAULT_LOCKED_RULES
    """Codes, or prefixes of codes, that no comment hides while ``locked``."""
    allowed_gpus: tuple[str, ...] = ()
    """Names of GPUs, as the catalog or the plans have them; ``*`` stands for anything."""
    max_gpus: int | None = None
    max_gpu_hours: float | None = None
    forbid_suppressions: bool = False
    """Whether no comment may hide a finding."""
    require_interval: bool = False
    """The upper end of the 95 % interval has to fit, too."""
    forbid_unseen: bool = False
    """No folder that a search leaves out may hold a plan."""

    def locks(self, code: str) -> bool:
        """Whether no comment may hide findings of a rule."""
        return self.forbid_suppressions or (self.locked and code.startswith(self.locked_rules))


class LockedLimits(Record):
    """The configured thresholds (fractions of capacity) and overhead that ``locked`` holds plans to."""

    fail_above: float
    warn_above: float
    overhead: str | float | None = None
    """None: as the engine models it."""
    uncertain: str = "warn"
    """What an interval that crosses the limit does."""
    unpacked: str = "warn"
    """What rows do that are not packed and fit only up to a length."""


class RuleContext(Record):
    """One plan under inspection. Fractions are of the GPU's capacity."""

    plan: Plan
    document: Document
    resolved: Resolved
    framework: Framework | None
    """The profile of the plan's training framework; None for inference."""
    fail_above: float
    warn_above: float
    waste_below: float | None = None
    unpacked: str = "warn"
    """What rows do that are not packed and fit only up to a length: ``warn`` | ``fail``."""
    uncertain: str = "warn"
    """``warn`` or ``fail``: what an interval does that crosses the limit or the capacity."""
    governance: Governance | None = None
    """What the configuration lays down for every plan; None for nothing."""
    limits: LockedLimits | None = None
    """The configured limits that the plan is checked against; None where it may state its own."""
    stated: PolicySpec = PolicySpec()
    """The policy as the plan has it, before the configuration's."""
    settled_by: str = ""
    """What would settle whether the plan fits; empty where that is certain, or was not asked for."""
    estimate: Estimate | None = None
    """None while only the layout rules run."""

    @property
    def job(self) -> TrainingJob | InferenceJob:
        """The resolved job."""
        return self.resolved.job

    @property
    def training(self) -> TrainingJob | None:
        """The resolved job if it trains."""
        return self.resolved.job if isinstance(self.resolved.job, TrainingJob) else None

    @property
    def layout(self) -> Layout:
        """How the job is cut over ranks."""
        return self.resolved.job.layout

    @property
    def architecture(self) -> Architecture | None:
        """The model, unless it is only roughly known."""
        model = self.resolved.job.architecture
        return None if isinstance(model, Rough) else model

    @property
    def host_bytes(self) -> int | None:
        """The memory of a node; None where the plan does not state it."""
        return host_capacity(self.plan.hardware.host_memory_gib)

    @property
    def layers(self) -> int:
        """The number of blocks of the model."""
        model = self.resolved.job.architecture
        return model.layers if isinstance(model, Rough) else model.num_layers


PROVABLE, MEASURED, HEURISTIC = "provable", "measured", "heuristic"
PRECISIONS = {
    PROVABLE: "it follows from the plan, the catalog and the framework's own code",
    MEASURED: "it compares a prediction, whose error was measured and whose interval is shown",
    HEURISTIC: "a rule of thumb: usually right, and a matter of judgement",
}
"""How a finding comes about, from what cannot be wrong to what may be."""


class Rule(Record):
    """One rule. Its module's docstring is its only documentation."""

    code: str
    name: str
    severity: str
    """Usual severity; a finding may be milder where the framework copes."""
    summary: str
    doc: str
    """The module docstring: sections in Markdown under one summary line."""
    check: Callable[[RuleContext], Iterator[Finding]] | None = None
    """None: the finding is made elsewhere, while the file is read or the model is estimated."""
    when: Callable[[RuleContext], bool] | None = None
    """What a plan must say for the check to find anything: one of ``rules/when.py``. None: it always looks."""
    precision: str = PROVABLE
    """One of ``PRECISIONS``."""
    profile: str = GATE
    """The narrowest profile that has the rule; each profile has the rules of those before it."""
    needs_estimate: bool = False
    blocking: bool = False
    """An error of this rule means that the job cannot start as written, so its memory is not predicted."""
    batch: bool = False
    """Whether the rule's check reads the batch: sequences, tokens and micro-batches. A check that does not read it has
    the same findings for every batch size."""
    opt_in: bool = False
    """Silent until the plan or the configuration asks for it."""

    def explain(self) -> str:
        """Return the rule's page in Markdown."""
        title, _, body = self.doc.strip().partition("\n")
        head = f"# {self.code} {self.name}\n\n{title.strip()}\n\n"
        facts = [
            f"Severity: {self.severity}.",
            f"Profile: `{self.profile}`, {self.default}.",
            f"Precision: {self.precision}; {PRECISIONS[self.precision]}.",
        ]
        return f"{head}{' '.join(facts)}\n{body.rstrip()}\n"

    @property
    def default(self) -> str:
        """Whether the rule looks without being asked to."""
        if self.opt_in:
            return "only where the plan or the configuration asks for it"
        return "on by default" if self.profile == GATE else f"off by default: `--profile {self.profile}` has it"

    def finding(
        self,
        context: RuleContext,
        message: str,
        pointer: str,
        *,
        help: str = "",
        related: tuple[tuple[str, str], ...] = (),
        severity: str = "",
    ) -> Finding:
        """Return a finding of this rule. ``related`` are labels with pointers; those not in the plan are left out."""
        document = context.document
        others = tuple((label, place(document, p)) for label, p in related if p != pointer and is_written(document, p))
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            message=message,
            location=place(context.document, pointer),
            pointer=pointer,
            help=help,
            related=others,
        )


def file_rule(code: Code, doc: str) -> Rule:
    """A rule whose findings are made while a file is read: its page and its example, without a check."""
    return Rule(code=code.code, name=code.name, severity=code.severity, summary=code.summary, doc=doc)


PROBLEM_CODES = {
    "model": codes.UNKNOWN_MODEL,
    "gpu": codes.UNKNOWN_GPU,
    "architecture": codes.UNSUPPORTED_ARCHITECTURE,
    "config-key": codes.UNREAD_CONFIG_KEY,
    "images": codes.INVALID_VALUE,
    "rows": codes.INVALID_VALUE,
    "base": codes.INVALID_VALUE,
    "lora": codes.INVALID_VALUE,
    "target": codes.INVALID_VALUE,
    "config": codes.UNREADABLE_CONFIG,
    "missing": codes.MISSING_KEY,
    "conflict": codes.CONFLICTING_KEYS,
}


def located(error: ResolutionError | UnsupportedError, document: Document) -> list[Finding]:
    """Return what could not be resolved or priced, as findings on the keys that ask for it."""
    if isinstance(error, UnsupportedError):
        where = place(document, error.pointer)
        return [codes.NO_MEMORY_MODEL.at(where, error.message, help=error.help, pointer=error.pointer)]
    return [
        PROBLEM_CODES[problem.kind].at(
            place(document, problem.pointer), problem.message, help=problem.help, pointer=problem.pointer
        )
        for problem in error.problems
    ]


def no_document(path: str) -> Finding:
    """Return a file without any document was named as a plan: it must not pass for one."""
    start = Location(path, Span(1, 1, 1, 1))
    return codes.INVALID_PLAN.at(start, "the file holds no document", help="a plan starts with `memcheck: 1`")


HERE = "used here"
EXTENDED = "extended here"
TAKEN = "taken from"
"""A value of the framework config that is the plan's source."""


def traced(findings: list[Finding], document: Document) -> list[Finding]:
    """The findings, each with the alias, merge key or ``extends`` through which its key was brought in."""
    return [_traced(finding, document) for finding in findings]


def _traced(finding: Finding, document: Document) -> Finding:
    use = _use(finding, document)
    if use is None or any(where.span == use.span and where.path == use.path for _, where in finding.related):
        return finding
    taken = finding.location.note.startswith(TAKEN)
    label = TAKEN if taken else EXTENDED if use.path != finding.location.path else HERE
    return finding._replace(related=(*finding.related, (label, use)))


def _use(finding: Finding, document: Document) -> Location | None:
    """Return the use of the key that a finding points at; None if the key stands in the plan itself, or is not in
    it.
    """
    pointer = finding.pointer
    while pointer and pointer not in document.marks:
        pointer = pointer.rpartition("/")[0]
    mark = document.marks.get(pointer) if pointer else None
    if mark is None or mark.used_at is None or mark.used_at.span.is_empty:
        return None
    own = {mark.value.path} | ({mark.key.path} if mark.key is not None else set())
    return mark.used_at if finding.location.path in own else None
