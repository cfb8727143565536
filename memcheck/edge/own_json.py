"""Reads and writes JSON of memcheck's own, shipped with the package or kept: nothing is explained, nothing is hostile.

``json`` brings the pattern engine along, to find its way in what cannot be read: as much again as a check takes to
judge a plan. Its scanner in C does without.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from _json import encode_basestring_ascii as _quoted
    from _json import make_encoder as _encoder
    from _json import make_scanner as _scanner
except ImportError:  # another interpreter than CPython
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
    return "".join(_encoder({}, _refused, _quoted, None, ":", ",", False, False, True)(value, 0))


def _refused(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")
