"""Mends a file in rounds: apply what does not overlap, check again, keep it only if the file got better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from memcheck.check import Gate, check_file
from memcheck.finding import Edit, FileEdits, Finding
from memcheck.plan import codes
from memcheck.plan.file_edits import disjoint, edited
from memcheck.plan.text import read_bytes
from memcheck.record import Record
from memcheck.result import PlanResult

HOST = "MEM106"
MAX_ROUNDS = 20
"""More than a plan has levels: each level of a mapping can hide one of mistakes."""

BROKEN = frozenset(
    code.code
    for code in (
        codes.UNREADABLE_FILE,
        codes.INVALID_YAML,
        codes.DUPLICATE_KEY,
        codes.BROKEN_EXTENDS,
        codes.TOO_COMPLEX,
        codes.CONFLICTING_KEYS,
    )
)
"""What no fix may bring in, whatever else it mends."""


class Fix(Record):
    """A way to mend one finding."""

    document: int
    finding: Finding
    title: str
    edits: tuple[Edit, ...]
    elsewhere: tuple[FileEdits, ...] = ()
    """Edits of the configs that the plan takes values from."""

    @property
    def key(self) -> tuple[int, str, str, str]:
        """What the fix is known by: equal before and after an edit elsewhere in the file."""
        return self.document, self.finding.code, self.finding.pointer, self.title


class Fixed(Record):
    """A file after its fixes."""

    data: bytes
    fixes: tuple[Fix, ...] = ()
    traces: tuple[str, ...] = ()
    """Tracebacks of memcheck's own failures, which end the fixing."""
    texts: Mapping[str, bytes] = {}
    """Configs that plans take values from, after the fixes; those that no fix changed are not among them."""


def fix_file(path: str, data: bytes, gate: Gate, *, unsafe: bool = False) -> Fixed:
    """The file with every fix that makes it better; with ``unsafe``, also with the first remedy of each plan.

    Doing it again to the result changes nothing more, unless ``MAX_ROUNDS`` was reached.
    """
    done: list[Fix] = []
    texts: dict[str, bytes] = {}
    refused: set[tuple[int, str, str, str]] = set()
    for _ in range(MAX_ROUNDS):
        gate = gate._replace(texts={**gate.texts, **texts})
        quick = gate._replace(remedies=None, inventory=False)
        results, traces = check_file(path, data, quick)
        fixes = [fix for fix in safe_fixes(path, results) if fix.key not in refused]
        if not fixes and unsafe and not traces:
            full, traces = check_file(path, data, gate)
            fixes = [fix for fix in remedy_fixes(path, full) if fix.key not in refused]
        if traces:
            return Fixed(data=data, fixes=tuple(done), traces=tuple(traces), texts=texts)
        together = [fix for fix, _ in disjoint((fix, fix.edits) for fix in fixes)]
        if any(fix.elsewhere for fix in together):
            together = together[:1]  # two plans may share a config
        if not together:
            break
        after = attempt(path, data, together, results, quick)
        if after is None:
            together, after = _first_alone(path, data, together, results, quick, refused)
        if after is not None:
            data = after.data
            texts.update(after.texts)
            done += together
    return Fixed(data, tuple(done), texts=texts)


def _first_alone(
    path: str,
    data: bytes,
    fixes: Sequence[Fix],
    results: Sequence[PlanResult],
    gate: Gate,
    refused: set[tuple[int, str, str, str]],
) -> tuple[list[Fix], Fixed | None]:
    """The first fix that is good on its own; those before it are refused for good."""
    for fix in fixes:
        after = attempt(path, data, [fix], results, gate)
        if after is not None:
            return [fix], after
        refused.add(fix.key)
    return [], None


def safe_fixes(path: str, results: Iterable[PlanResult]) -> list[Fix]:
    """The fixes with one right outcome, in the order of the text. Edits are of this file, never of one it extends."""
    found = [
        Fix(document=result.document, finding=finding, title=finding.message, edits=finding.fix)
        for result in results
        for finding in result.findings
        if result.fixable(finding)
    ]
    return sorted(found, key=lambda fix: fix.edits[0].span)


def remedy_fixes(path: str, results: Iterable[PlanResult]) -> list[Fix]:
    """The first remedy of each plan that fails, if the file can be edited so; a warning is no reason to edit.

    No fix changes the hardware: whether other GPUs are bought or taken is not decided by an edit.
    """
    found = []
    for result in results:
        remedies = [(finding, result.written_by_unsafe_fixes(finding)) for finding in result.findings]
        finding, remedy = next(((finding, remedy) for finding, remedy in remedies if remedy is not None), (None, None))
        if finding is not None and remedy is not None:
            found.append(
                Fix(
                    document=result.document,
                    finding=finding,
                    title=remedy.title,
                    edits=remedy.edits,
                    elsewhere=remedy.elsewhere,
                )
            )
    return found


def attempt(path: str, data: bytes, fixes: Sequence[Fix], before: Sequence[PlanResult], gate: Gate) -> Fixed | None:
    """The files with these fixes, or None if they would not be better."""
    after = edited(data, (edit for fix in fixes for edit in fix.edits))
    texts: dict[str, bytes] = {}
    for file in (file for fix in fixes for file in fix.elsewhere):
        now = gate.texts[file.path] if file.path in gate.texts else read_bytes(file.path)
        texts[file.path] = edited(now, file.edits)
    if after == data and not texts:
        return None
    results, traces = check_file(path, after, gate._replace(texts={**gate.texts, **texts}))
    return Fixed(after, texts=texts) if not traces and is_better(before, results, fixes) else None


def is_better(before: Sequence[PlanResult], after: Sequence[PlanResult], fixes: Sequence[Fix]) -> bool:
    """Whether every mended finding is gone, and no plan is further from being judged than it was."""
    if len(before) != len(after):
        return False
    for old, new in zip(before, after, strict=True):
        if _stage(new) < _stage(old) or _count(new, BROKEN) > _count(old, BROKEN):
            return False
        mine = [fix for fix in fixes if fix.document == old.document]
        gone = Counter(_said(old)) - Counter(_said(new))
        for fix in mine:
            remains = _count(new, frozenset({fix.finding.code}))
            if fix.finding.remedies and (remains or not _needs_less(new, old, fix.finding)):
                return False
        if Counter((f.finding.code, f.finding.message) for f in mine if not f.finding.remedies) - gone:
            return False
    return True


def _needs_less(new: PlanResult, old: PlanResult, finding: Finding) -> bool:
    """Whether a plan needs less of what the finding is about: the memory of the node, or the share of the GPU's, which
    another GPU may have more of.
    """
    if new.estimate is None or old.estimate is None:
        return False
    if finding.code == HOST:
        return new.estimate.host_bytes_per_node < old.estimate.host_bytes_per_node
    return new.estimate.utilization < old.estimate.utilization


def _said(result: PlanResult) -> list[tuple[str, str]]:
    return [(finding.code, finding.message) for finding in result.findings]


def _stage(result: PlanResult) -> int:
    """How far reading a plan came: not even text, a plan with mistakes, a judged plan."""
    return 0 if result.values is None else 1 if result.estimate is None else 2


def _count(result: PlanResult, among: frozenset[str]) -> int:
    return sum(finding.code in among for finding in result.findings)
