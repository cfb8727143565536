"""Which columns of a table a screen has room for."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "


def fitting(widths: Sequence[int], expendable: Sequence[int], room: int) -> list[int]:
    """The columns that fit side by side; the expendable ones give way in their order, and no other does."""
    kept = list(range(len(widths)))
    for index in expendable:
        if sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1) <= room:
            break
        kept.remove(index)
    return kept


def left_out(heads: Sequence[str], kept: Sequence[int], instead: str = "take --format json") -> str:
    """A sentence on the columns that gave way; empty when none did. ``instead``: where else they are."""
    gone = [head for index, head in enumerate(heads) if index not in kept]
    return f"no room for {', '.join(gone)}: widen the terminal, or {instead}." if gone else ""
