"""The suppressing comments of one file: found, read, applied, and reported if they are wrong, expired or unused."""

from __future__ import annotations

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import attrgetter, itemgetter

from memcheck.edge.libyaml import yaml
from memcheck.edge.opener import today
from memcheck.errors import closest
from memcheck.plan import compose
from memcheck.plan import finding as codes
from memcheck.plan.finding import Edit, Finding, Location, Span
from memcheck.plan.places import Document
from memcheck.record import Record
from memcheck.rules.registry import RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.rules.types import Governance


_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*memcheck: ignore\b(?P<rest>.*?)\s*(?=\s#\s*memcheck: ignore\b|$)")
_REST = re.compile(r"\s*\[(?P<codes>[^\]]*)\](?P<reason>.*)")
_UNTIL = re.compile(r"\buntil:\s*(\S*[^\s,;.)])")
_Extent = tuple[tuple[int, int], tuple[int, int]]
"""Where something starts and where it ends: line from 1, column from 0."""
GUESSES = 100
"""Unknown names of one file for which the closest known one is looked up."""
_FORM = "# memcheck: ignore[MEM203] why it is accepted"


class Suppression(Record):
    """One comment that suppresses findings: ``# memcheck: ignore[...]``."""

    line: int
    """The line of the comment, from 1."""
    covers: int
    """The line whose findings the comment hides: its own line, or the next line that is no comment."""
    span: Span
    codes: tuple[str, ...] = ()
    """Full codes; empty when something is wrong with the comment."""
    reason: str = ""
    """Why the findings are accepted, without the day."""
    until: str = ""
    """The last day on which it counts, as YYYY-MM-DD."""
    problem: tuple[str, str] = ("", "")
    """What is wrong with it, and what to do: such a comment hides nothing."""

    @property
    def expired(self) -> bool:
        """Whether the last day of the comment is over (in UTC, so that it is over for everyone at once)."""
        return self.until != "" and self.until < today()


def suppressions_of(lines: Sequence[str]) -> list[Suppression]:
    """Every suppressing comment of a file, in order."""
    candidates = [(number, match) for number, text in enumerate(lines, 1) for match in _COMMENT.finditer(text)]
    if not candidates:
        return []
    scalars, last = _scalars(lines)
    covers = _covers(lines)
    codes = Codes()
    return [
        _read(lines, number, match, covers, codes)
        for number, match in candidates
        if number <= last and not _inside(scalars, (number, match.start()))
    ]


def _inside(scalars: Sequence[_Extent], place: tuple[int, int]) -> bool:
    """Whether a place is in one of the scalars, which are in the order of the text."""
    index = bisect_right(scalars, place, key=itemgetter(0)) - 1
    return index >= 0 and place < scalars[index][1]


def _covers(lines: Sequence[str]) -> list[int]:
    """For every line that is a comment alone the next line that is none; for every other line itself."""
    found = [0] * len(lines)
    following = len(lines) + 1
    for number in range(len(lines), 0, -1):
        if not lines[number - 1].lstrip().startswith("#"):
            following = number
        found[number - 1] = following
    return found


def without(lines: Sequence[str], one: Suppression, codes: Sequence[str]) -> Edit:
    """The edit that leaves only ``codes`` of a comment, or takes all of it away when none is left."""
    text, span = lines[one.line - 1], one.span
    comment = text[span.column - 1 : span.end_column - 1]
    if codes:
        start, end = comment.index("[") + 1, comment.index("]")
        inside = Span(one.line, span.column + start, one.line, span.column + end)
        return Edit(inside, ", ".join(codes))
    before = text[: span.column - 1]
    if not before.strip() and span.end_column > len(text.rstrip()):
        following = (one.line + 1, 1) if one.line < len(lines) else (one.line, len(text) + 1)
        return Edit(Span(one.line, 1, *following), "")
    return Edit(span._replace(column=len(before.rstrip()) + 1), "")


def _scalars(lines: Sequence[str]) -> tuple[list[_Extent], int]:
    """Where the file's scalars start and end (line from 1, column from 0), and the last line that could be read."""
    found = []
    last = 0
    try:
        for token in _tokens("\n".join(lines)):
            start, end = token.start_mark, token.end_mark
            last = start.line + 1
            if isinstance(token, yaml.ScalarToken):
                found.append(((start.line + 1, start.column), (end.line + 1, end.column)))
    except yaml.YAMLError:
        return found, last
    return found, len(lines)


def _tokens(text: str) -> Iterator[yaml.Token]:
    return yaml.scan(text, Loader=compose.Parser)  # type: ignore[arg-type,attr-defined]  # libyaml's, or the one in Python


def _read(
    lines: Sequence[str], number: int, match: re.Match[str], following: Sequence[int], known: Codes
) -> Suppression:
    text = lines[number - 1]
    alone = text.lstrip().startswith("#")
    covers = following[number - 1] if alone else number
    span = Span(number, match.start() + 1, number, match.end() + 1)
    found = Suppression(number, covers, span)
    rest = _REST.fullmatch(match["rest"])
    if rest is None or not rest["codes"].strip():
        return found._replace(problem=("the suppression names no rule", f"write `{_FORM}`"))
    codes, problem = known.read([part.strip() for part in rest["codes"].split(",") if part.strip()])
    until = _UNTIL.search(rest["reason"])
    reason = _UNTIL.sub("", rest["reason"])
    if problem is None and not any(character.isalnum() for character in reason):
        problem = ("the suppression gives no reason", "after the bracket, say why the finding is accepted")
    if problem is None and until is not None and not _is_date(until[1]):
        problem = (f"`{until[1]}` is no date", "write the last day as `until: YYYY-MM-DD`")
    if problem is not None:
        return found._replace(problem=problem)
    return found._replace(codes=codes, reason=reason.strip(" \t,;"), until=until[1] if until else "")


class Codes:
    """Reads the rules that the comments of one file name."""

    def __init__(self) -> None:
        self._by_name = {rule.name: rule.code for rule in RULES}
        self._codes = frozenset(self._by_name.values())
        self._guesses = GUESSES

    def read(self, written: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, str] | None]:
        """Codes or names of rules as codes, or what is wrong with the first that is none."""
        found = tuple(self._by_name.get(name.lower(), name.upper()) for name in written)
        for name, code in zip(written, found, strict=True):
            if code not in self._codes:
                close = self._close(name, code)
                hint = f"did you mean `{close[-1]}`?" if close else "`memcheck list rules` shows every rule"
                return (), (f"no rule has the code or name `{name}`", hint)
        return tuple(dict.fromkeys(found)), None

    def _close(self, name: str, code: str) -> list[str]:
        """What may be meant; nothing once a file has had its guesses, since each costs more than the comment."""
        if not self._guesses:
            return []
        self._guesses -= 1
        return closest(code, self._by_name.values()) + closest(name, self._by_name)


def _is_date(written: str) -> bool:
    try:
        return time.strftime("%Y-%m-%d", time.strptime(written, "%Y-%m-%d")) == written
    except ValueError:
        return False


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
