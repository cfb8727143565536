"""Values as JSON that survives every reader of lines, terminals and logs on its way."""

from __future__ import annotations

import json
import re

_COMMAND = re.compile(r"##(?=[A-Za-z]*\[)")
"""The start of a CI runner's command, which counts wherever it stands in a line."""


def dumps(value: object, indent: int | None = None) -> str:
    """JSON with letters of every script as they are; what ends a line for some or cannot be seen is escaped.

    Outside of strings there is nothing but ASCII and no ``#``, so that what is replaced stands in strings.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if not text.replace("\n", "").isprintable():
        text = "".join(char if char.isprintable() or char == "\n" else _escaped(char) for char in text)
    return _COMMAND.sub(r"#\\u0023", text) if "##" in text else text


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"
