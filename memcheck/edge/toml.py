"""Reads untrusted TOML: the standard library's parser, within bounds that no real document reaches."""

from __future__ import annotations

import re
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    from importlib import import_module

    tomllib = import_module("tomli")

DEEPEST = 100
"""Tables and lists inside each other, and parts of one dotted key; the parser's time grows with their square."""
LARGEST_INTEGER = 2**64
"""Every integer is smaller: TOML has 64 bits for one."""

_DOT = re.compile(r"[\w\"'-][ \t]*\.(?=[ \t]*[\w\"'-])")
_OUTSIDE_KEYS = re.compile(r"[^\w.\s\"'-]")


class TomlError(ValueError):
    """Text that is no TOML, or that exceeds a bound.

    ``message`` is without the place, which ``str`` has; ``line`` and ``column`` are 1 where the parser names none.
    """

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{message} ({place})" if place else message)
        self.message = message
        found = re.fullmatch(r"at line (\d+), column (\d+)", place)
        self.line, self.column = (int(found[1]), int(found[2])) if found else (1, 1)


def parse_toml(text: str) -> dict[str, object]:
    """The top table of a document.

    Raises:
        TomlError: no TOML, nested deeper than :data:`DEEPEST`, or an integer beyond 64 bits.
    """
    _refuse_long_keys(text)
    try:
        values: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).rpartition(" (at ")
        raise (TomlError(message, f"at {place[:-1]}") if message else TomlError(str(error))) from None
    except RecursionError:
        raise TomlError(f"tables and lists are nested deeper than {DEEPEST}") from None
    except ValueError as error:  # more digits than Python converts, or a date that no calendar has
        raise TomlError(str(error).partition(":")[0]) from None
    _check(values)
    return values


def _refuse_long_keys(text: str) -> None:
    if text.count(".") <= DEEPEST:
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > DEEPEST and any(len(_DOT.findall(part)) >= DEEPEST for part in _OUTSIDE_KEYS.split(line)):
            raise TomlError(f"a key has more than {DEEPEST} parts", f"at line {number}, column 1")


def _check(values: dict[str, object]) -> None:
    waiting: list[tuple[object, int]] = [(values, 0)]  # no recursion: that is what is bounded here
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, (dict, list)):
            if depth > DEEPEST:
                raise TomlError(f"tables and lists are nested deeper than {DEEPEST}")
            inside = value.values() if isinstance(value, dict) else value
            waiting.extend((each, depth + 1) for each in inside)
        elif isinstance(value, int) and abs(value) >= LARGEST_INTEGER:
            raise TomlError("an integer has more than the 64 bits of TOML's")
