"""Finds the suppressing comments of a file, and reads what they say."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import yaml

from memcheck.finding import Edit, Span
from memcheck.plan import compose
from memcheck.record import Record

_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*memcheck: ignore\b(?P<rest>.*?)\s*(?=\s#\s*memcheck: ignore\b|$)")
_REST = re.compile(r"\s*\[(?P<codes>[^\]]*)\](?P<reason>.*)")
_UNTIL = re.compile(r"\buntil:\s*(\S*[^\s,;.)])")
_FORM = "# memcheck: ignore[MEM203] why it is accepted"


class Suppression(Record):
    """One comment."""

    line: int
    """The line it stands on, from 1."""
    covers: int
    """The line whose findings it hides: its own, or the next one that is no comment."""
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
        """Whether its last day is over (in UTC, so that it is over for everyone at once)."""
        return self.until != "" and self.until < time.strftime("%Y-%m-%d", time.gmtime())


def suppressions_of(lines: Sequence[str]) -> list[Suppression]:
    """Every suppressing comment of a file, in order."""
    candidates = [(number, match) for number, text in enumerate(lines, 1) for match in _COMMENT.finditer(text)]
    if not candidates:
        return []
    scalars, last = _scalars(lines)
    return [
        _read(lines, number, match)
        for number, match in candidates
        if number <= last and not any(start <= (number, match.start()) < end for start, end in scalars)
    ]


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


def _scalars(lines: Sequence[str]) -> tuple[list[tuple[tuple[int, int], tuple[int, int]]], int]:
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


def _read(lines: Sequence[str], number: int, match: re.Match[str]) -> Suppression:
    text = lines[number - 1]
    covers = number
    if not text[: match.start()].strip() or text.lstrip().startswith("#"):
        covers += 1
        while covers <= len(lines) and lines[covers - 1].lstrip().startswith("#"):
            covers += 1
    span = Span(number, match.start() + 1, number, match.end() + 1)
    found = Suppression(number, covers, span)
    rest = _REST.fullmatch(match["rest"])
    if rest is None or not rest["codes"].strip():
        return found._replace(problem=("the suppression names no rule", f"write `{_FORM}`"))
    codes, problem = _codes([part.strip() for part in rest["codes"].split(",") if part.strip()])
    until = _UNTIL.search(rest["reason"])
    reason = _UNTIL.sub("", rest["reason"])
    if problem is None and not any(character.isalnum() for character in reason):
        problem = ("the suppression gives no reason", "say behind the bracket why the finding is accepted")
    if problem is None and until is not None and not _is_date(until[1]):
        problem = (f"`{until[1]}` is no date", "write the last day as `until: YYYY-MM-DD`")
    if problem is not None:
        return found._replace(problem=problem)
    return found._replace(codes=codes, reason=reason.strip(" \t,;"), until=until[1] if until else "")


def _codes(written: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Codes or names of rules as codes, or what is wrong with the first that is none."""
    from memcheck.rules.registry import RULES

    codes = {rule.name: rule.code for rule in RULES}
    found = tuple(codes.get(name.lower(), name.upper()) for name in written)
    for name, code in zip(written, found, strict=True):
        if code not in codes.values():
            from difflib import get_close_matches

            close = get_close_matches(code, codes.values(), 1) + get_close_matches(name, codes, 1)
            hint = f"did you mean `{close[-1]}`?" if close else "`memcheck list rules` shows every rule"
            return (), (f"no rule has the code or name `{name}`", hint)
    return tuple(dict.fromkeys(found)), None


def _is_date(written: str) -> bool:
    try:
        return time.strftime("%Y-%m-%d", time.strptime(written, "%Y-%m-%d")) == written
    except ValueError:
        return False
