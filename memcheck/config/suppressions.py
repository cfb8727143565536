"""Applies the suppressing comments of one file, and reports those that are wrong, expired or unused."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

from memcheck.config.comments import Suppression, suppressions_of, without
from memcheck.finding import Finding, Location
from memcheck.plan import codes
from memcheck.plan.document import Document
from memcheck.record import Record
from memcheck.rules.registry import RULES

OPT_IN = frozenset(rule.code for rule in RULES if rule.opt_in)
ABOUT_COMMENTS = frozenset(
    code.code
    for code in (
        codes.INVALID_SUPPRESSION,
        codes.UNUSED_SUPPRESSION,
        codes.EXPIRED_SUPPRESSION,
        codes.FORBIDDEN_SUPPRESSION,
    )
)
"""What is said about comments cannot be hidden by comments."""

MOST = 1000
"""Findings of one code about the comments of a file. The first of them counts those that are beyond."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.rules.governance import Governance


class Owner(Record):
    """A document of the file."""

    number: int
    first_line: int


class Suppressions:
    """The comments of one plan file and of the files it extends."""

    def __init__(self, as_written: bool) -> None:
        """``as_written``: the plans are judged as their file has it; else no comment can be called unused."""
        self._as_written = as_written
        self._path = ""
        self._files: dict[str, list[Suppression]] = {}
        self._covering: dict[str, dict[str, list[Suppression]]] = {}
        """For every file and code the comments that hide it, by the line they cover."""
        self._lines: Sequence[str] = ()
        self._owners: list[Owner] = []
        self._met: set[tuple[int, str]] = set()
        """Line and code of every comment of the file itself that met a finding."""

    def begin(self, document: Document) -> Callable[[Finding], str]:
        """Why a finding of this document is hidden; empty if it is not."""
        self._lines = document.sources.get(document.path, ())
        self._path = document.path
        first = document.marks[""].value.span.line
        self._owners.append(Owner(document.index, first))
        for path, lines in document.sources.items():
            if path not in self._files:
                self._files[path] = suppressions_of(lines)
                self._covering[path] = _by_code(self._files[path])
        return lambda finding: self._hides(finding, document)

    def _hides(self, finding: Finding, document: Document) -> str:
        if finding.code in ABOUT_COMMENTS:
            return ""
        reason = ""
        for place in _places(finding, document):
            for one in self._over(place, finding.code):
                if place.path == self._path:
                    self._met.add((one.line, finding.code))
                reason = reason or ("" if one.expired else one.reason)
        return reason

    def _over(self, place: Location, code: str) -> list[Suppression]:
        """The comments on a code that cover a line of a place."""
        ordered = self._covering.get(place.path, {}).get(code, [])
        first = bisect_left(ordered, place.span.line, key=attrgetter("covers"))
        return ordered[first : bisect_right(ordered, place.span.end_line, key=attrgetter("covers"))]

    def reported(
        self, judged: Collection[int], counts: Callable[[str], bool], policy: Governance | None = None
    ) -> dict[int, list[Finding]]:
        """What there is to say about the comments themselves, by document.

        ``judged``: documents that were estimated; ``counts``: whether a rule takes part; ``policy``: what no comment
        may hide.
        """
        found: dict[int, list[Finding]] = {}
        counted: dict[str, int] = {}
        for one in self._files.get(self._path, ()):
            owner = self._owner(one)
            unused: tuple[str, ...] = ()
            if self._as_written and owner in judged:
                unused = tuple(c for c in one.codes if (one.line, c) not in self._met and counts(c) and c not in OPT_IN)
            locked = () if policy is None else tuple(code for code in one.codes if policy.locks(code))
            finding = self._forbidden(one, locked) if locked else self._about(one, unused)
            if finding is None:
                continue
            counted[finding.code] = counted.get(finding.code, 0) + 1
            if counted[finding.code] <= MOST:
                found.setdefault(owner, []).append(finding)
        for findings in found.values():
            for index, finding in enumerate(findings):
                more = counted.pop(finding.code, 0) - MOST
                if more > 0:
                    message = f"{finding.message}; so it is with {more:,} more comments of this file"
                    findings[index] = finding._replace(message=message)
        return found

    def _owner(self, one: Suppression) -> int:
        """The last document that starts at or above what the comment covers; the first one for a comment above all."""
        index = bisect_right(self._owners, one.covers, key=attrgetter("first_line")) - 1
        return self._owners[max(index, 0)].number

    def _forbidden(self, one: Suppression, locked: tuple[str, ...]) -> Finding:
        """The finding on a comment that would hide rules which the configuration does not allow to hide."""
        at = Location(self._path, one.span)
        message = f"the policy lets no comment hide {' or '.join(locked)}, so that this one hides nothing of it"
        return codes.FORBIDDEN_SUPPRESSION.at(at, message, help="remove it, and mend what it was to hide")

    def _about(self, one: Suppression, unused: tuple[str, ...]) -> Finding | None:
        at = Location(self._path, one.span)
        if one.problem[0]:
            message, help = one.problem
            return codes.INVALID_SUPPRESSION.at(at, f"{message}, so that it hides nothing", help=help)
        if one.expired and unused != one.codes:
            help = "mend what it hid, or set a later day and say why"
            return codes.EXPIRED_SUPPRESSION.at(at, f"the suppression ended with {one.until}", help=help)
        if not unused:
            return None
        kept = [code for code in one.codes if code not in unused]
        message = f"nothing here is {' or '.join(unused)}, so that the suppression hides nothing"
        help = f"leave only {', '.join(kept)}" if kept else "remove the comment"
        return codes.UNUSED_SUPPRESSION.at(at, message, help=help, fix=(without(self._lines, one, kept),))


def _by_code(comments: Sequence[Suppression]) -> dict[str, list[Suppression]]:
    """The comments on each code; in the order of a file they are in that of the lines they cover, too."""
    found: dict[str, list[Suppression]] = {}
    for one in comments:
        for code in one.codes:
            found.setdefault(code, []).append(one)
    return found


def _places(finding: Finding, document: Document) -> list[Location]:
    """Where a comment may stand for a finding: what it underlines, the key of that, and the other places it names."""
    places = [finding.location, *(where for _, where in finding.related)]
    if finding.code.startswith("MEM1"):  # about the whole plan; which key it underlines is the cheapest remedy's choice
        places.append(document.marks[""].value)
    mark = document.marks.get(finding.pointer)
    if mark is not None:
        places += [place for place in (mark.key, mark.used_at) if place is not None]
    return places
