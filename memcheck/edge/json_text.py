"""JSON without ``json``, which brings the pattern engine along: as much again as a check takes to judge a plan.

Own files, shipped with the package or kept, are read and written: nothing in them is hostile, and nothing is explained.
Values for others are written so that they survive every reader of lines, terminals and logs on their way.
"""

from __future__ import annotations

from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from _json import encode_basestring as _quoted
    from _json import encode_basestring_ascii as _quoted_ascii
    from _json import make_encoder as _encoder
    from _json import make_scanner as _scanner
except ImportError:  # another interpreter than CPython
    from json.encoder import encode_basestring as _quoted
    from json.encoder import encode_basestring_ascii as _quoted_ascii

    _scanner = _encoder = None  # type: ignore[assignment,misc]


class _Usual:
    """How ``json.loads`` reads: the attributes that the scanner asks for."""

    strict = True
    object_hook = object_pairs_hook = parse_constant = None
    parse_float, parse_int = float, int


def read_own_json(path: str) -> Any:
    """The value in a file of the package, in UTF-8."""
    with open(path, encoding="utf-8") as file:
        return parsed(file.read())


def parsed(text: str) -> Any:
    """The value of a text; raises ValueError or StopIteration where it is no JSON."""
    if _scanner is None:
        import json

        return json.loads(text)
    return _scanner(_Usual)(text, 0)[0]  # type: ignore[arg-type]


def written(value: object) -> str:
    """The text of a value, in ASCII and without blanks; raises TypeError or ValueError for what JSON does not have."""
    if _encoder is None:
        import json

        return json.dumps(value, separators=(",", ":"))
    return "".join(_encoder({}, _refused, _quoted_ascii, None, ":", ",", False, False, True)(value, 0))


COMMAND = r"##(?=[A-Za-z]*\[)"
"""The start of a CI runner's command, which counts wherever it stands in a line."""


def dumps(value: object, indent: int | None = None) -> str:
    """JSON with letters of every script as they are; what ends a line for some or cannot be seen is escaped.

    Outside of strings there is nothing but ASCII and no ``#``, so that what is replaced stands in strings.
    """
    text = _on_one_line(value) if indent is None else "".join(_written(value, "\n", " " * indent))
    if not text.replace("\n", "").isprintable():
        text = "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)
    if "##" in text:
        import re

        return re.sub(COMMAND, r"#\\u0023", text)
    return text


def _on_one_line(value: object) -> str:
    if _encoder is None:
        import json

        return json.dumps(value, ensure_ascii=False)
    return "".join(_encoder({}, _refused, _quoted, None, ": ", ", ", False, False, True)(value, 0))


def _written(value: object, line: str, step: str) -> Iterator[str]:
    """A value's text in pieces. ``line``: what begins a line at its depth; ``step``: by how much the next is deeper."""
    if isinstance(value, str):
        yield _quoted(value)
    elif isinstance(value, dict) and value:
        before = "{"
        for key, each in value.items():
            name = key if isinstance(key, str) else _on_one_line(key)
            yield f"{before}{line}{step}{_quoted(name)}: "
            yield from _written(each, line + step, step)
            before = ","
        yield line + "}"
    elif isinstance(value, list | tuple) and value:
        before = "["
        for each in value:
            yield f"{before}{line}{step}"
            yield from _written(each, line + step, step)
            before = ","
        yield line + "]"
    else:
        yield _on_one_line(value)


def _refused(value: object) -> object:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _escaped(char: str) -> str:
    return _quoted_ascii(char)[1:-1] if char != "\x7f" else "\\u007f"
