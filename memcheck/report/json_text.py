"""Values as JSON that survives every reader of lines, terminals and logs on its way."""

from __future__ import annotations

import json
import re

_HARMFUL = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""What ends a line for some readers, turns the direction of text, drives a terminal, or is no character at all."""
_COMMAND = re.compile(r"##(?=[A-Za-z]*\[)")
"""The start of a CI runner's command, which counts wherever it stands in a line."""


def dumps(value: object, indent: int | None = None) -> str:
    """JSON with letters of every script as they are, and harmful characters as code points in hexadecimal.

    Outside of strings there is nothing but ASCII and no ``#``, so that what is replaced stands in strings.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if not text.isascii() or "\x7f" in text:
        text = _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return _COMMAND.sub(r"#\\u0023", text) if "##" in text else text
