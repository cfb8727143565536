"""The baseline file, and findings against it: what was accepted is hidden as long as it does not get worse.

Configurations and baselines as an earlier commit has them, so that a branch cannot loosen what judges it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import weakref
from collections.abc import Callable, Iterable, Sequence

from memcheck import __version__
from memcheck.cli.review.history.checkout import Tree
from memcheck.cli.review.history.git import Base, inside_of, open_commit
from memcheck.config.find import Files
from memcheck.edge.opener import RefusedError, read_whole
from memcheck.errors import ConfigurationError, UsageError
from memcheck.plan.finding import Finding, key_of
from memcheck.plan.schema import shorten
from memcheck.record import Record
from memcheck.rules.result import PlanResult

DEFAULT_FILE = ".memcheck-baseline.json"
FORMAT = 1
LARGEST = 64 * 2**20
"""Bytes of a baseline file: some 300,000 accepted findings."""


class AcceptedFinding(Record):
    """One accepted finding."""

    path: str
    """Relative to the baseline's folder, with forward slashes."""
    plan: str
    code: str
    pointer: str = ""
    """JSON pointer of the key; empty for findings about the plan as a whole."""
    utilization: float | None = None
    """Share of the GPU's memory that was predicted when the finding was accepted."""
    host_bytes_per_node: int = 0


def read_entries(file: str, read: Callable[[str, int], bytes] = read_whole) -> tuple[AcceptedFinding, ...]:
    """The entries of a baseline file. ``read``: gives the file's bytes, at most as many as its second argument.

    Raises:
        ConfigurationError: it cannot be read, or is no baseline of this format.
    """
    try:
        data = read(file, LARGEST)
    except OSError as error:
        message = f"cannot read the baseline {file}: {error.strerror or error}"
        raise ConfigurationError(message, "`memcheck baseline write` writes one") from error
    return entries_in(data, file)


def entries_in(data: bytes, file: str) -> tuple[AcceptedFinding, ...]:
    """The entries in the bytes of a baseline file.

    Raises:
        ConfigurationError: it is no baseline of this format.
    """
    try:
        written = json.loads(data, parse_constant=_no_number, parse_float=_finite)
        version, entries = written["baseline"], tuple(_entry(item) for item in written["findings"])
    except _NumberError as error:
        text = data.decode("utf-8", "replace")
        at = next((found.start() for found in _NUMBERS.finditer(text) if found[0] == error.args[0]), 0)
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        message = f"{file}:{line}:{column}: {shorten(error.args[0])} is no finite number, and accepts nothing"
        raise ConfigurationError(message, "write the number that was predicted") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigurationError(f"{file} is no baseline: {error}", "`memcheck baseline write` writes one") from error
    if version != FORMAT:
        message = f"{file} is a baseline of format {version!r}, and this memcheck reads {FORMAT}"
        raise ConfigurationError(message, "upgrade memcheck, or write the baseline again")
    return entries


def _entry(item: dict[str, object]) -> AcceptedFinding:
    """One entry. Raises TypeError for unknown, missing and ill-typed values."""
    entry = AcceptedFinding(**item)  # type: ignore[arg-type]  # checked below
    wanted: tuple[type | tuple[type, ...], ...] = (str, str, str, str, (int, float, type(None)), int)
    for name, value, types in zip(entry._fields, tuple(entry), wanted, strict=True):
        if not isinstance(value, types) or isinstance(value, bool):
            raise TypeError(f"{name} is {shorten(repr(value))}")
        if isinstance(value, (int, float)) and not 0 <= value < LARGEST_NUMBER:
            raise TypeError(f"{name} is {shorten(repr(value))}, which no plan needs")
    return entry


LARGEST_NUMBER = 2**63
"""Every number of an entry is below it."""
_NUMBERS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s\[\]{}:,"]+')
"""Texts, and what stands outside of them."""


class _NumberError(ValueError):
    """A number that is none, as it is written."""


def _no_number(written: str) -> object:
    raise _NumberError(written)


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise _NumberError(written)
    return value


def rendered(entries: Iterable[AcceptedFinding]) -> str:
    """The text of a baseline file: one entry per line, sorted, so that a diff shows what was accepted."""
    lines = []
    for entry in sorted(set(entries), key=lambda each: each[:4]):
        stated = {key: value for key, value in entry._asdict().items() if value not in {"", None, 0}}
        lines.append("  " + _encodable(json.dumps(stated, ensure_ascii=False)))
    body = "[\n" + ",\n".join(lines) + "\n ]" if lines else "[]"
    return f'{{\n "baseline": {FORMAT},\n "memcheck": {json.dumps(__version__)},\n "findings": {body}\n}}\n'


def _encodable(text: str) -> str:
    """JSON in which half a pair of surrogates is an escape: a file name that is no UTF-8 has them."""
    return "".join(f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in text)


def entries_of(result: PlanResult, folder: str) -> list[AcceptedFinding]:
    """What accepting every finding of a judged plan means. Of a plan that was not judged nothing can be accepted."""
    if result.estimate is None:
        return []
    utilization, host = round(result.estimate.utilization, 4), result.estimate.host_bytes_per_node
    path = relative(result.path, folder)
    return [
        AcceptedFinding(
            path=path,
            plan=result.name,
            code=finding.code,
            pointer=key_of(finding.code, finding.pointer),
            utilization=utilization,
            host_bytes_per_node=host,
        )
        for finding in result.findings
    ]


def relative(path: str, folder: str) -> str:
    """A path as entries have it."""
    return os.path.relpath(path, folder).replace(os.sep, "/")


FULLNESS = ("MEM101", "MEM102", "MEM103", "MEM104")
"""Rules on how full the GPU is, from the worst to the mildest. An accepted one covers the milder ones after it."""
WASTE, HOST = "MEM105", "MEM106"
TOLERANCE = 0.001
"""A tenth of a percent of the capacity, so that rounding is no change."""


class Baseline:
    """One baseline file in one run."""

    def __init__(self, file: str, read: Callable[[str, int], bytes] = read_whole) -> None:
        """Read the file through ``read``; raises ConfigurationError."""
        self.file = file
        self.folder = os.path.dirname(file) or "."
        self._entries: dict[tuple[str, str], list[AcceptedFinding]] = {}
        for entry in read_entries(file, read):
            self._entries.setdefault((entry.path, entry.plan), []).append(entry)
        self._met: set[AcceptedFinding] = set()

    def judge(self, result: PlanResult, finding: Finding) -> Finding | None:
        """None for an accepted finding; one that got worse says what was accepted."""
        for entry in self._entries.get((relative(result.path, self.folder), result.name), ()):
            if not _same(entry, finding):
                continue
            self._met.add(entry)
            worse = _worse(entry, result)
            if not worse:
                return None
            if worse not in finding.message:
                finding = finding._replace(message=f"{finding.message}; {worse}")
        return finding

    def entries_of(self, path: str) -> tuple[AcceptedFinding, ...]:
        """The entries for the plans of one file."""
        inside = relative(path, self.folder)
        return tuple(entry for (where, _), mine in self._entries.items() if where == inside for entry in mine)

    def take_met(self) -> set[AcceptedFinding]:
        """The entries that accepted something since the last call."""
        met, self._met = self._met, set()
        return met

    def add_met(self, entries: set[AcceptedFinding]) -> None:
        """Entries that accepted something in another process."""
        self._met |= entries

    def stale(self, results: Sequence[PlanResult], counts: Callable[[str, str], bool]) -> list[AcceptedFinding]:
        """Entries that accept nothing any more: the file or plan is gone, or the finding is.

        Only files of this run, and rules that took part (``counts`` of a path and a code), can be spoken of.
        """
        seen: dict[str, list[PlanResult]] = {}
        for result in results:
            seen.setdefault(relative(result.path, self.folder), []).append(result)
        found = []
        for (path, name), entries in self._entries.items():
            plans = seen.get(path, [])
            if not plans:
                if not os.path.exists(os.path.join(self.folder, path)):
                    found += entries
                continue
            mine = [plan for plan in plans if plan.name == name] or plans
            if all(plan.estimate is not None for plan in mine):
                found += [e for e in entries if e not in self._met and counts(mine[0].path, e.code)]
        return found


def _same(entry: AcceptedFinding, finding: Finding) -> bool:
    if entry.code in FULLNESS and finding.code in FULLNESS:
        return entry.code <= finding.code
    return (entry.code, entry.pointer) == (finding.code, key_of(finding.code, finding.pointer))


def _worse(entry: AcceptedFinding, result: PlanResult) -> str:
    """What was accepted, when the plan is further from it than rounding explains; empty when it is not."""
    estimate, accepted = result.estimate, entry.utilization
    if estimate is None or accepted is None:
        return ""
    if entry.code in FULLNESS:
        more = estimate.utilization > accepted + TOLERANCE
        return f"the baseline accepts {accepted:.1%}" if more else ""
    if entry.code == WASTE:
        return f"the baseline accepts {accepted:.1%}" if estimate.utilization < accepted - TOLERANCE else ""
    if entry.code == HOST and estimate.host_bytes_per_node > entry.host_bytes_per_node * (1 + TOLERANCE):
        return f"the baseline accepts {entry.host_bytes_per_node / 2**30:.2f} GiB"
    return ""


OPTION = "--config-from-ref"


class CommittedFiles(Files):
    """The files of one commit under their paths in the working tree; nothing of the working tree itself is read."""

    def __init__(self, base: Base) -> None:
        self.origin = f" of {base.label}"
        self._base = base
        self._tree = Tree(base)
        weakref.finalize(self, self._tree.close)

    def holds(self, path: str) -> bool:
        """Whether the commit has a file or a link under this name."""
        return self._inside(path) in self._tree

    def read(self, path: str, limit: int) -> bytes:
        """Every byte of a file.

        Raises:
            FileNotFoundError: the commit has no such file, or a link to none of its files.
            RefusedError: the file is larger than ``limit`` bytes.
            UsageError: git cannot read the object.
        """
        data = self._tree.read(self._inside(path), limit)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, f"there is none in {self._base.label}", path)
        if len(data) > limit:
            raise RefusedError(path, f"it is larger than {limit:,} bytes")
        return data

    def is_top(self, folder: str) -> bool:
        """Whether the folder is the repository's: a submodule of the branch ends no search."""
        return folder == self._base.root

    def _inside(self, path: str) -> str:
        """The path from the root, through the links that the commit has: those of the working tree lead nowhere."""
        full = os.path.abspath(path)
        if not full.startswith(self._base.root.rstrip(os.sep) + os.sep):  # named through a link above the repository
            return self._tree.place(inside_of(self._base, path, OPTION))
        return self._tree.place(os.path.relpath(full, self._base.root).replace(os.sep, "/"))


def committed_files(ref: str) -> CommittedFiles:
    """The files of the commit that ``ref`` names, of a branch its tip.

    Raises:
        UsageError: no repository, or no such ref.
    """
    return CommittedFiles(open_commit(ref, OPTION))


Accepted = dict[str, set[AcceptedFinding]]
"""Entries by the path of their plan, from the repository's root."""


class Acceptances:
    """The baselines of one run; each is read once, as it is and as it was."""

    def __init__(self, base: Base, tree: Tree) -> None:
        self._base = base
        self._tree = tree
        self._changed: dict[str, set[str] | None] = {}

    def touches(self, file: str, inside: str) -> bool:
        """Whether a baseline file accepts something else of a plan (its path from the root) than it did."""
        if file not in self._changed:
            self._changed[file] = self._differing(file)
        changed = self._changed[file]
        return changed is None or inside in changed

    def _differing(self, file: str) -> set[str] | None:
        """Plans with other entries than at the base; None where what was accepted cannot be known."""
        try:
            place = inside_of(self._base, file)
        except UsageError:  # outside of the repository
            return None
        data = self._tree.read(place, LARGEST)
        try:
            before = _by_plan(entries_in(data, file), place) if data is not None else {}
        except ConfigurationError:
            return None
        now = _by_plan(read_entries(file), place) if os.path.exists(file) else {}
        return {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}


def _by_plan(entries: tuple[AcceptedFinding, ...], place: str) -> Accepted:
    found: Accepted = {}
    for entry in entries:
        inside = os.path.normpath(os.path.join(os.path.dirname(place), entry.path)).replace(os.sep, "/")
        found.setdefault(inside, set()).add(entry)
    return found
