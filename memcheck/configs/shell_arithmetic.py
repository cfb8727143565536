"""Whole numbers that a shell script works out: ``$(expr 16 / $GPUS)``, ``$((BATCH / MICRO / GPUS))``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

_MOST = 120
"""Letters of one expression, and digits of all its numbers together: what is longer is no batch size."""
_OPENS = re.compile(r"(\$\(\(|\$\[|\$\(\s?(?=expr\s)|`\s?(?=expr\s))(?:expr\s)?")
_CLOSES = {"$((": "))", "$[": "]", "$(": ")", "`": "`"}
_ENDS = "\"'; \t\\"
_PART = re.compile(r"\s*(?:(\d{1,18})|\$\{?([A-Za-z_]\w*)\}?|([A-Za-z_]\w*)|(\\?[-+*/()]))")
_LARGEST = 2**62


def worked_out(line: str, variables: Mapping[str, str], branches: Collection[str]) -> str:
    """The line with the value in place of each sum, as long as before; what hangs on a branch stays as it is."""
    if "expr" not in line and "$((" not in line and "$[" not in line:
        return line

    found, at = "", 0
    for start in _OPENS.finditer(line):
        if start.start() < at:
            continue
        closing = _CLOSES[start[1].rstrip()]
        end = line.find(closing, start.end(), start.end() + _MOST)
        while closing == "))" and line[end + 2 : end + 3] == ")" and end >= 0:
            end += 1  # of a bracket inside
        number = None if end < 0 else _value(line[start.end() : end], variables, branches)
        after = end + len(closing)
        if number is not None and (line[after : after + 1] or " ") in _ENDS:
            found += line[at : start.start()] + str(number).ljust(after - start.start())
            at = after
    return found + line[at:]


def _value(text: str, variables: Mapping[str, str], branches: Collection[str]) -> int | None:
    """A sum of whole numbers, divided as the shell does; None where it is none, or not known."""
    parts: list[str] = []
    at = 0
    while at < len(text) and text[at:].strip():
        found = _PART.match(text, at)
        if found is None:
            return None
        at = found.end()
        name = found[2] or found[3]
        known = found[1] or (variables.get(name, "") if name and name not in branches else "")
        if known and not (known.isascii() and known.isdigit()):
            return None
        part = known or (found[4] or "").removeprefix("\\")
        if not part:
            return None
        parts.append(part)
    if not parts or sum(map(len, parts)) > _MOST:
        return None
    number, rest = _terms(parts)
    return None if rest or number is None or not 0 <= number < _LARGEST else number


Rest = list[str]


def _terms(parts: Rest) -> tuple[int | None, Rest]:
    return _chain(parts, {"+": int.__add__, "-": int.__sub__}, _factors)


def _factors(parts: Rest) -> tuple[int | None, Rest]:
    return _chain(parts, {"*": int.__mul__, "/": int.__floordiv__}, _atom)


def _chain(
    parts: Rest, signs: Mapping[str, Callable[[int, int], int]], inner: Callable[[Rest], tuple[int | None, Rest]]
) -> tuple[int | None, Rest]:
    """Numbers between signs of one rank, from left to right."""
    number, rest = inner(parts)
    while number is not None and rest and rest[0] in signs:
        other, after = inner(rest[1:])
        if other is None or (rest[0] == "/" and other == 0):
            return None, after
        number, rest = signs[rest[0]](number, other), after
        if number < 0:  # the shell rounds towards zero, and nothing that counts is below it
            return None, rest
    return number, rest


def _atom(parts: Rest) -> tuple[int | None, Rest]:
    if parts and parts[0] == "(":
        number, rest = _terms(parts[1:])
        return (number, rest[1:]) if rest[:1] == [")"] else (None, rest)
    if parts and parts[0].isdigit():
        return int(parts[0]), parts[1:]
    return None, parts
