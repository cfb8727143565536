r"""``primaryLocationLineHash``: how GitHub recognises a line after the lines above it have moved.

The hash of a line covers the 100 characters from its start on, into the lines below: UTF-16 code units, blanks left
out, every line end one ``\n``, an end mark after the text and zeros after that. It is their polynomial in 37 modulo
2^64, in hexadecimal, with the number of the occurrence among lines of equal hash. Uploading results whose hash differs
from GitHub's own makes its action warn about each of them (``src/fingerprints.ts`` of github/codeql-action).
"""

from __future__ import annotations

import re

WINDOW = 100
BASE = 37
MASK = 2**64 - 1
END = 0xFFFF

_LINE_END = re.compile("\r\n?")
_BLANKS = re.compile("[ \t]+")


def line_hashes(text: str) -> list[str]:
    """One hash per line; what follows the last line end is a line too, even if it is empty."""
    units = code_units(_BLANKS.sub("", _LINE_END.sub("\n", text)))
    prefixes = [0]
    for unit in [*units, END, *([0] * WINDOW)]:
        prefixes.append((prefixes[-1] * BASE + unit) & MASK)
    # A window's polynomial is what its last prefix holds beyond its first one.
    shift = pow(BASE, WINDOW, MASK + 1)
    starts = [0, *(index + 1 for index, unit in enumerate(units) if unit == 0x0A)]
    seen: dict[int, int] = {}
    hashes = []
    for start in starts:
        value = (prefixes[start + WINDOW] - prefixes[start] * shift) & MASK
        seen[value] = seen.get(value, 0) + 1
        hashes.append(f"{value:x}:{seen[value]}")
    return hashes


def code_units(text: str) -> list[int]:
    """The UTF-16 code units of a text."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    return [high << 8 | low for high, low in zip(encoded[::2], encoded[1::2], strict=True)]
