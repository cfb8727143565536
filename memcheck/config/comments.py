"""Finds the suppressing comments of a file, and reads what they say."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter

from memcheck.edge.closest import closest
from memcheck.edge.libyaml import yaml
from memcheck.edge.observed import today
from memcheck.finding import Edit, Span
from memcheck.plan import compose
from memcheck.record import Record
from memcheck.rules.registry import RULES

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
