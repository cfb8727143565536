"""From the bytes of a file to its text and lines.

Bytes are UTF-8, with or without a byte order mark, with any line ends; anything else is named and located.
"""

from __future__ import annotations

import os

from memcheck.edge.opener import read_start
from memcheck.plan import finding as codes
from memcheck.plan.finding import Finding, Location, Span

MAX_BYTES = 1_048_576
"""1 MiB: three hundred times a long plan. Larger files are refused before they are parsed."""
MOST_OF_NOTEBOOK = 16 * MAX_BYTES
"""Bytes of a notebook, most of which are the pictures of its outputs."""

NO_BREAKS = "\x0b\x0c\x1c\x1d\x1e"
"""Characters that end a line to Python, and are none in YAML."""
_UTF16_32 = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")


def read_bytes(path: str) -> bytes:
    """Read the bytes of a file, at most one more than ``most_bytes``, so that an endless one does no harm.

    Raises OSError.
    """
    return read_start(path, most_bytes(path))


def most_bytes(path: str) -> int:
    """The largest size of a file that is read, in bytes."""
    return MOST_OF_NOTEBOOK if path.lower().endswith(".ipynb") else MAX_BYTES


def shown_path(path: str) -> str:
    """A path as reports write it: forward slashes everywhere."""
    return path if os.sep == "/" else path.replace(os.sep, "/")


def decode(path: str, data: bytes) -> tuple[str, Finding | None]:
    """Return the text, without its byte order mark; with a finding, as much of it as is needed to show the place."""
    most = most_bytes(path)
    if len(data) > most:
        message = f"the file is larger than {most:,} bytes ({most >> 20} MiB)"
        at = Location(path, Span(1, 1, 1, 1))
        return "", codes.TOO_COMPLEX.at(at, message, help="split it: one file can hold many plans, not a data set")
    if data.startswith(_UTF16_32):
        at = Location(path, Span(1, 1, 1, 1))
        return "", codes.UNREADABLE_FILE.at(at, "the file is UTF-16 or UTF-32, not UTF-8", help="save it as UTF-8")
    zero = data.find(b"\0")
    if zero >= 0:
        return _broken(path, data, zero, "the file is binary: it holds a zero byte", "name a YAML file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        return _broken(path, data, error.start, f"the byte 0x{byte:02x} is not UTF-8", "save the file as UTF-8")
    return text.removeprefix("\ufeff"), None


def _broken(path: str, data: bytes, offset: int, message: str, help: str) -> tuple[str, Finding]:
    """Return as much text as is needed to show the place at ``offset``, and the finding."""
    before = data[:offset].decode("utf-8", "replace").removeprefix("\ufeff")
    lines = split_lines(before + "x")
    line, column = len(lines), len(lines[-1])
    at = Location(path, Span(line, column, line, column + 1))
    shown = data[: offset + 200].decode("utf-8", "replace").removeprefix("\ufeff")
    return shown.replace("\0", "\ufffd"), codes.UNREADABLE_FILE.at(at, message, help=help)


def split_lines(text: str) -> tuple[str, ...]:
    """Lines as the YAML parser counts them: to Python, some control characters that YAML refuses end lines, too."""
    return tuple(unbroken(text).splitlines())


def unbroken(text: str) -> str:
    """Return the text, as long as before, in which Python's lines are those of the YAML parser."""
    for character in NO_BREAKS:
        text = text.replace(character, "\ufffd")
    return text
