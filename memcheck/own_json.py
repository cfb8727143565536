"""Reads the JSON that is shipped with the package. It is known to be JSON: nothing is explained, nothing is hostile.

``json`` brings the pattern engine along, to find its way in what cannot be read: as much again as a check takes to
judge a plan. Its scanner in C does without.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from _json import make_scanner as _scanner
except ImportError:  # another interpreter than CPython
    _scanner = None  # type: ignore[assignment,misc]


class _Usual:
    """How ``json.loads`` reads: the attributes that the scanner asks for."""

    strict = True
    object_hook = object_pairs_hook = parse_constant = None
    parse_float, parse_int = float, int


def read_own_json(path: str) -> Any:
    """The value in a file of the package, in UTF-8."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if _scanner is None:
        import json

        return json.loads(text)
    return _scanner(_Usual)(text, 0)[0]  # type: ignore[arg-type]
