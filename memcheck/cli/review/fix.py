"""Mends a file in rounds: apply what does not overlap, check again, keep it only if the file got better.

``check --fix`` and ``--diff``: mend the files before they are judged, or show what would be done.
"""

from __future__ import annotations

import os
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher, unified_diff
from itertools import pairwise
from typing import TypeVar

from memcheck.cli.judging import CLEAN, FINDINGS, USAGE, Gates, configurations_of, plan_files
from memcheck.cli.options import CheckOptions
from memcheck.cli.replace import replace_all
from memcheck.cli.write import complain, tell, write_bug_report, write_document
from memcheck.config.find import STDIN
from memcheck.configs.documents import is_config
from memcheck.errors import DEFECT, UsageError
from memcheck.judge import Gate, check_file
from memcheck.plan import finding as codes
from memcheck.plan.finding import Edit, FileEdits, Finding, Span
from memcheck.plan.text import read_bytes
from memcheck.plan.value_edits import edited
from memcheck.record import Record
from memcheck.rules.result import PlanResult, Unreadable

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
"""Findings that no fix may add, even if it repairs others."""

_Group = TypeVar("_Group")


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
    most: dict[int, int] = {}
    """How many fixes of a document are tried at once, where all together do not make it better."""
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
        together = _at_most(together, most)
        if not together:
            break
        after, worse = attempt(path, data, together, results, quick)
        if worse:
            _narrow(together, worse, most, refused)
            together = [fix for fix in together if fix.document not in worse]
            after, worse = attempt(path, data, together, results, quick) if together else (None, set())
        if after is not None and not worse:
            data = after.data
            texts.update(after.texts)
            done += together
            most = {document: 2 * count for document, count in most.items()}
        elif after is None:
            refused.update(fix.key for fix in together)
    return Fixed(data, tuple(done), texts=texts)


def _at_most(fixes: Sequence[Fix], most: Mapping[int, int]) -> list[Fix]:
    """The first fixes of each document, as many as are tried at once."""
    counts: Counter[int] = Counter()
    found = []
    for fix in fixes:
        counts[fix.document] += 1
        if counts[fix.document] <= most.get(fix.document, len(fixes)):
            found.append(fix)
    return found


def _narrow(
    fixes: Sequence[Fix], worse: set[int], most: dict[int, int], refused: set[tuple[int, str, str, str]]
) -> None:
    """Try half as many fixes of each document that they do not make better; one that fails alone is refused."""
    tried = Counter(fix.document for fix in fixes)
    for document in worse & tried.keys():
        most[document] = tried[document] // 2
        if not most[document]:
            refused.update(fix.key for fix in fixes if fix.document == document)
            del most[document]


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


def attempt(
    path: str, data: bytes, fixes: Sequence[Fix], before: Sequence[PlanResult], gate: Gate
) -> tuple[Fixed | None, set[int]]:
    """The files with these fixes, and the documents that would not be better; None if the fixes change nothing."""
    after = edited(data, (edit for fix in fixes for edit in fix.edits))
    texts: dict[str, bytes] = {}
    for file in (file for fix in fixes for file in fix.elsewhere):
        now = gate.texts[file.path] if file.path in gate.texts else read_bytes(file.path)
        texts[file.path] = edited(now, file.edits)
    if after == data and not texts:
        return None, set()
    results, traces = check_file(path, after, gate._replace(texts={**gate.texts, **texts}))
    worse = {fix.document for fix in fixes} if traces else not_better(before, results, fixes)
    return Fixed(after, texts=texts), worse


def not_better(before: Sequence[PlanResult], after: Sequence[PlanResult], fixes: Sequence[Fix]) -> set[int]:
    """The documents of which a mended finding is not gone, or that are further from being judged than they were."""
    if len(before) != len(after):
        return {fix.document for fix in fixes}
    own: dict[int, list[Fix]] = {}
    for fix in fixes:
        own.setdefault(fix.document, []).append(fix)
    return {
        old.document
        for old, new in zip(before, after, strict=True)
        if not _is_better(old, new, own.get(old.document, ()))
    }


def _is_better(old: PlanResult, new: PlanResult, fixes: Sequence[Fix]) -> bool:
    codes_left = Counter(finding.code for finding in new.findings)
    if _stage(new) < _stage(old) or sum(codes_left[code] for code in BROKEN) > _count(old, BROKEN):
        return False
    for fix in fixes:
        if fix.finding.remedies and (codes_left[fix.finding.code] or not _needs_less(new, old, fix.finding)):
            return False
    gone = Counter(_said(old)) - Counter(_said(new))
    return not Counter((f.finding.code, f.finding.message) for f in fixes if not f.finding.remedies) - gone


def _needs_less(new: PlanResult, old: PlanResult, finding: Finding) -> bool:
    """Whether a plan needs less of what the finding is about: the memory of the node, or the share of the GPU's, which
    another GPU may have more of. A serving engine boots, or does not: it may boot with a larger share of the GPU.
    """
    if new.estimate is None or old.estimate is None:
        return False
    if new.estimate.engine is not None:
        return True  # the finding is gone
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


def disjoint(groups: Iterable[tuple[_Group, Sequence[Edit]]]) -> list[tuple[_Group, tuple[Edit, ...]]]:
    """The groups whose edits can all be made together, first come first served; each is taken whole or not at all.

    Equal edits are one: an alias used twice is mended once. Two insertions at one place have no order, so that the
    second waits.
    """
    taken: set[Edit] = set()
    spans: list[Span] = []
    """Spans of the edits that are taken, in order. No two of them overlap."""
    chosen = []
    for group, edits in groups:
        new = sorted({edit for edit in edits if edit not in taken})
        apart = not any(_overlap(one.span, other.span) for one, other in pairwise(new))
        if apart and not any(_meets(spans, edit.span) for edit in new):
            taken.update(new)
            for edit in new:
                insort(spans, edit.span)
            chosen.append((group, tuple(edits)))
    return chosen


def _meets(spans: Sequence[Span], span: Span) -> bool:
    """Whether a span overlaps one of these, of which no two do."""
    at = bisect_left(spans, span)
    return any(_overlap(span, other) for other in spans[max(0, at - 1) : at + 1])


def _overlap(one: Span, other: Span) -> bool:
    """Whether two spans share a character, or one inserts inside or at the start of the other."""
    first, second = sorted((one, other))
    if (first.line, first.column) == (second.line, second.column):
        return True
    return (second.line, second.column) < (first.end_line, first.end_column)


def fix_paths(options: CheckOptions) -> int | None:
    """Mend every file, or print the diff and return its exit code. None: the files are to be checked as they are now.

    Raises:
        UsageError: options that exclude each other, nothing to fix, or a file that cannot be written.
    """
    _refuse(options)
    configurations = configurations_of(options)
    gates = Gates(options, configurations)
    seen, found, changed = 0, 0, 0
    elsewhere: list[str] = []
    defects: tuple[str, ...] = ()
    unreadable = False
    texts: dict[str, bytes] = {}
    configs: list[str] = []
    for file in plan_files(options, configurations, [], elsewhere, []):
        if isinstance(file, Unreadable):
            unreadable = True
            if options.diff:
                complain(f"cannot read {file.path}: {file.message}")
            continue
        seen += 1
        gate = gates.of(file.path)._replace(texts=texts)
        fixed = fix_file(file.path, file.data, gate, unsafe=options.unsafe_fixes)
        defects += fixed.traces
        before = {file.path: file.data, **{path: texts.get(path) or read_bytes(path) for path in fixed.texts}}
        after = {file.path: fixed.data, **fixed.texts}
        if before == after:
            configs += [file.path] if is_config(file.path, file.data) else []
            continue
        changed += sum(before[path] != after[path] for path in after)
        found += len(fixed.fixes)
        if options.diff:
            write_document("".join(difference(path, before[path], after[path]) for path in after))
            texts.update(fixed.texts)
        else:
            replace_files(before, after)
    if changed and not options.quiet:
        verb = "would fix" if options.diff else "fixed"
        _say(f"{verb} {_number(found, 'finding')} in {_number(changed, 'file')}")
    if configs and not options.quiet:
        _say(f"{_not_edited(configs)}; {_as_plan(configs[0], options)}")
    if defects and options.diff:
        write_bug_report(list(options.arguments), defects)
        return DEFECT
    if not options.diff:
        return None
    if not seen and not unreadable and not elsewhere and not options.allow_empty:
        raise UsageError("nothing to fix: no plan in the given paths", "--allow-empty accepts none")
    if unreadable:
        return USAGE
    return FINDINGS if changed and not options.exit_zero else CLEAN


def _refuse(options: CheckOptions) -> None:
    if options.unsafe_fixes and not (options.fix or options.diff):
        raise UsageError(
            "--unsafe-fixes alone does nothing", "add --fix to write the files, or --diff to see what would be"
        )
    if options.gpu is not None:
        configs = [path for path in options.paths if os.path.isfile(path) and is_config(path, read_bytes(path))]
        if configs:
            raise UsageError(_not_edited(configs), _as_plan(configs[0], options))
        raise UsageError("--fix and --diff mend plans as they are written, not on another --gpu", "leave out --gpu")
    if STDIN in options.paths and not options.diff:
        raise UsageError("stdin cannot be written", "--diff shows what would be fixed")


def _not_edited(configs: Sequence[str]) -> str:
    """That no fix edits configs."""
    more = f" and {len(configs) - 1} more" if len(configs) > 1 else ""
    return f"--fix and --diff edit plans, not configs: {configs[0]}{more}"


def _as_plan(path: str, options: CheckOptions) -> str:
    """What to do with a config instead: the command that makes a plan of it."""
    named = (("--gpu", options.gpu), ("--gpus", options.gpus), ("--gpus-per-node", options.gpus_per_node))
    stated = "".join(f" {name} {value}" for name, value in (*named, ("--nodes", options.nodes)) if value is not None)
    return f"change the config yourself, or write a plan: `memcheck import {path}{stated} --output plan.yaml`"


def difference(path: str, before: bytes, after: bytes) -> str:
    """A unified diff that ``patch -p0`` applies; carriage returns and a missing last line end are kept."""
    lines = _unified(_lines(before), _lines(after), path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _unified(old: list[str], new: list[str], path: str) -> Iterator[str]:
    """The lines of a unified diff.

    Where no line came or went, lines are compared one by one: difflib takes a time that grows with their square.
    """
    if len(old) != len(new):
        yield from unified_diff(old, new, path, path)
        return
    yield f"--- {path}\n"
    yield f"+++ {path}\n"
    for group in _Paired(None, old, new).get_grouped_opcodes():
        first, end = group[0][1], group[-1][2]
        place = f"{first + 1}" if end - first == 1 else f"{first + 1},{end - first}"
        yield f"@@ -{place} +{place} @@\n"
        for kind, start, stop, _, _ in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[start:stop])
            else:
                yield from (f"-{line}" for line in old[start:stop])
                yield from (f"+{line}" for line in new[start:stop])


class _Paired(SequenceMatcher[str]):
    """Lines of two texts, as many in each, compared one by one."""

    def set_seqs(self, a: Sequence[str], b: Sequence[str]) -> None:
        """Keep the lines, without an index of them."""
        self._pair = a, b

    def get_opcodes(self) -> list[tuple[str, int, int, int, int]]:  # type: ignore[override]
        """Equal and replaced lines in turn."""
        return [
            ("equal" if same else "replace", first, end, first, end) for same, first, end in _stretches(*self._pair)
        ]


def _stretches(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[bool, int, int]]:
    """Runs of equal and of changed lines: whether they are equal, the index of the first line, and the end index."""
    first = 0
    for number in range(1, len(old) + 1):
        same = old[first] == new[first]
        if number == len(old) or (old[number] == new[number]) != same:
            yield same, first, number
            first = number


def _lines(data: bytes) -> list[str]:
    """Lines as patch counts them: only a line feed ends one."""
    parts = data.decode("utf-8").split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def replace_files(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """Write mended files, all or none.

    Raises:
        UsageError: one of them cannot be written, or is not what was read any more.
    """
    path = ""
    try:
        for path, data in before.items():
            if read_bytes(path) != data:
                raise UsageError(f"{path} changed while it was being fixed", "run memcheck again")
        path = next(iter(after))
        replace_all({path: data for path, data in after.items() if data != before[path]})
    except OSError as error:
        name = path if error.filename is None else error.filename
        raise UsageError(f"cannot write {name}: {error.strerror or error}", "nothing was written") from error


def _say(message: str) -> None:

    tell(f"memcheck: {message}\n")


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
