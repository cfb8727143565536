"""Findings that refer to others: at an anchor or in a base, after another mistake, or instead of an estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcheck.errors import UnsupportedError
from memcheck.job.lookup import ResolutionError
from memcheck.plan import finding as codes
from memcheck.plan.finding import Finding, Location, Span
from memcheck.plan.places import Document
from memcheck.rules.budget import divisors, listed
from memcheck.rules.types import RuleContext, place

TYPE_CHECKING = False


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


DEGREES = ("tensor", "context", "pipeline", "expert", "expert_tensor", "data", "virtual_stages")
HELPED = ("tensor", "context", "pipeline")
"""Degrees of which others can be tried: the number of GPUs stays, and ``data`` takes up the difference."""

if TYPE_CHECKING:
    Starts = Callable[[RuleContext], bool]
    """Whether no rule keeps a job from starting."""


def joined(context: RuleContext, findings: Sequence[Finding], starts: Starts) -> list[Finding]:
    """Return the findings, those errors joined that name the same degree as an earlier one.

    Only for errors that keep a job from starting: none of them can be hidden.
    """
    marks = context.document.marks
    degrees = {
        place(context.document, pointer): name for name in DEGREES if (pointer := f"/parallelism/{name}") in marks
    }
    kept: list[Finding] = []
    owners: dict[str, int] = {}
    merged: dict[int, str] = {}
    for finding in findings:
        names = _named(finding, degrees)
        owner = next((owners[name] for name in names if name in owners), None)
        if owner is None:
            owners.update((name, len(kept)) for name in names)
            kept.append(finding)
            continue
        first = kept[owner]
        kept[owner] = first._replace(related=(*first.related, (f"{finding.code}: {finding.message}", finding.location)))
        merged[owner] = next(name for name in names if owners.get(name) == owner)
    for number, name in merged.items():
        help = _fitting(context, name, starts)
        if help:
            kept[number] = kept[number]._replace(help=help)
    return kept


def _named(finding: Finding, degrees: dict[Location, str]) -> list[str]:
    """Return the degrees that a finding points at, the one it underlines first."""
    places = [finding.location, *(where for _, where in finding.related)]
    return list(dict.fromkeys(degrees[where] for where in places if where in degrees))


def _fitting(context: RuleContext, name: str, starts: Starts) -> str:
    """Return values of a degree with which nothing keeps the job from starting, those that divide the GPUs tried."""
    layout, job = context.layout, context.resolved.job
    if name not in HELPED or context.plan.parallelism.data is not None:
        return ""
    found = []
    for value in divisors(layout.world_size, layout.world_size):
        sizes = {each: value if each == name else getattr(layout, each) for each in HELPED}
        tensor, ring, stages = (sizes[each] for each in HELPED)
        if layout.world_size % (tensor * ring * stages):
            continue
        data = layout.world_size // (tensor * ring * stages)
        tried = layout._replace(tensor=tensor, context=ring, pipeline=stages, data=data)
        tried = tried._replace(
            shard_group=min(layout.shard_group, data * ring), sequence=layout.sequence and tensor > 1
        )
        resolved = context.resolved._replace(job=job._replace(layout=tried))
        if starts(context._replace(resolved=resolved)):
            found.append(f"`{name}: {value}`")
    return f"with everything else as it is, {listed(found, 'or')} would do" if found else ""
