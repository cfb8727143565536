"""Values as JSON that survives every reader of lines, terminals and logs on its way.

The text is that of ``json``, whose import brings the pattern engine along and takes longer than to write a report.
"""

from __future__ import annotations

from collections.abc import Iterator

try:
    from _json import encode_basestring as _quoted
    from _json import encode_basestring_ascii as _quoted_ascii
    from _json import make_encoder as _encoder
except ImportError:  # another interpreter than CPython
    from json.encoder import encode_basestring as _quoted
    from json.encoder import encode_basestring_ascii as _quoted_ascii

    _encoder = None  # type: ignore[assignment,misc]

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
