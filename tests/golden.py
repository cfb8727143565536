"""Golden files with several outputs of one thing, below a heading each: one file to review instead of one per format."""

from __future__ import annotations

import re

HEADING = re.compile(r"^=====+ (\w+) =====+\n", re.MULTILINE)


def joined(sections: dict[str, str]) -> str:
    """The text of a golden file. No section may hold a line that reads like a heading."""
    text = "".join(f"{f'===== {name} '.ljust(100, '=')}\n{section}" for name, section in sections.items())
    assert parted(text) == sections
    return text


def parted(text: str) -> dict[str, str]:
    """The sections of a golden file by their names; each ends with a line feed."""
    _, *parts = HEADING.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))
