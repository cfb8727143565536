"""A generated page: written, or compared with what would be written today."""

from __future__ import annotations

import os
from collections.abc import Sequence


def write_or_check(path: str, text: str, command: str, arguments: Sequence[str]) -> int:
    """Write ``text``, or with ``--check`` say whether the page has it; 1 if it has not. ``command``: what writes it."""
    if "--check" not in arguments:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    name = os.path.basename(path)
    with open(path, encoding="utf-8") as file:
        fresh = file.read() == text
    print(f"{name} is of today" if fresh else f"stale: benchmarks/{name} ({command})")
    return not fresh
