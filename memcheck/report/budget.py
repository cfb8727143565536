"""The memory budget of one GPU, and of a node, as aligned rows: a waterfall of parts against the capacity line."""

from __future__ import annotations

from memcheck.accounts.estimate import COMPONENTS, Estimate
from memcheck.edge.screen import Screen
from memcheck.edge.text import gib, one_line, percent, width, words, wrap
from memcheck.report.gauge import tone
from memcheck.report.seen import CACHE_ROW, cache_note
from memcheck.result import PlanResult

FIGURES = 25
"""Columns of the two figures with the space around them: ``      12.34   123.4%``."""
LEAST_BAR = 10


def budget(plan: PlanResult, estimate: Estimate, screen: Screen) -> list[str]:
    """Rows for every component that holds memory, then what is needed, the capacity and what is left or missing.

    The allocator's cache is a tail of what is needed, and no part of it.
    """
    capacity, parts = estimate.capacity_bytes, estimate.needed_parts_bytes
    held = [(words(name), parts.get(name, 0)) for name in COMPONENTS]
    lines = waterfall(
        ("memory of one GPU", "of capacity"),
        [(name, count) for name, count in held if count > 0],
        ("device memory needed", estimate.needed_bytes),
        (f"capacity of {one_line(plan.gpu)}" if plan.gpu else "capacity", capacity),
        tone(plan, estimate),
        screen,
        tail=(CACHE_ROW, estimate.cache_bytes),
    )
    note = cache_note(estimate)
    return lines + [screen.paint(line, "dim") for line in wrap(note, screen.columns) if note]


def host_budget(plan: PlanResult, screen: Screen) -> list[str]:
    """A node's memory at its fullest moment against what the plan states it has; no lines where it states none."""
    moment = plan.estimate.host_moment if plan.estimate is not None else None
    capacity = plan.host_capacity_bytes
    if moment is None or capacity is None:
        return []
    lines = waterfall(
        (f"host memory in {moment.name}", "of the node"),
        [(words(name), count) for name, count in sorted(moment.components, key=lambda item: -item[1])],
        ("host memory needed", moment.bytes),
        ("memory of a node", capacity),
        "good-bar" if moment.bytes <= capacity else "bad-bar",
        screen,
    )
    return lines + [screen.paint(line, "dim") for line in wrap(f"{moment.name}: {moment.operation}", screen.columns)]


def waterfall(
    heads: tuple[str, str],
    parts: list[tuple[str, int]],
    needed: tuple[str, int],
    there: tuple[str, int],
    style: str,
    screen: Screen,
    *,
    tail: tuple[str, int] = ("", 0),
) -> list[str]:
    """Parts that add up to a need, what there is, and what is left or missing; ``style`` is that of the whole need.

    ``tail``: what is held beyond the need as long as nothing else wants it; it lies within what is left.
    """
    need, capacity = needed[1], there[1]
    rows = [*parts, tail] if tail[1] else parts
    first = max(width(label) for label in (heads[0], needed[0], there[0], *(label for label, _ in rows)))
    room = screen.columns - first - FIGURES
    scale = CellScale(max(need, capacity, 1), capacity, room if room >= LEAST_BAR else 0, screen)
    lines = [screen.paint(f"{heads[0].ljust(first)}{'GiB'.rjust(11)}{heads[1].rjust(13)}", "dim")]
    start = 0
    for name, count in parts:
        lines.append(f"{_figures(name, first, count, capacity)} {scale.bar(start, count, 'bar')}".rstrip())
        start += count
    lines.append(screen.paint(screen.glyph("rule") * (first + FIGURES + scale.cells), "dim"))
    whole = _figures(needed[0], first, need, capacity)
    lines.append(f"{screen.paint(whole, 'strong')} {scale.bar(0, need, style)}".rstrip())
    if tail[1]:
        shown = f"{_figures(tail[0], first, tail[1], capacity)} {scale.bar(need, tail[1], 'dim', 'tail')}"
        lines.append(screen.paint(shown.rstrip(), "dim"))
    lines.append(f"{_figures(there[0], first, capacity, capacity)} {scale.bar(0, 0, '')}".rstrip())
    slack = capacity - need
    verdict = _figures("missing" if slack < 0 else "left", first, abs(slack), capacity)
    return [*lines, screen.paint(verdict, "error" if slack < 0 else "strong")]


def _figures(label: str, first: int, count: int, capacity: int) -> str:
    share = percent(count / capacity) if capacity else ""
    return f"{label}{' ' * (first - width(label))}{gib(count).rjust(11)}{share.rjust(13)}"


class CellScale:
    """Bytes to terminal cells, with the capacity line drawn through every row."""

    def __init__(self, full: int, capacity: int, cells: int, screen: Screen) -> None:
        self.full = full
        self.cells = cells
        self.screen = screen
        over = full > capacity
        self.limit = min(round(capacity / full * (cells - 1)), cells - 2) if over else cells - 1

    def bar(self, start: int, count: int, style: str, glyph: str = "full") -> str:
        """A bar of ``count`` bytes that starts at byte ``start``; the part above the capacity is shown in red."""
        if not self.cells:
            return ""
        first = self._cell(start)
        last = self._cell(start + count)
        if count and last <= first:  # less than a cell: show one, inside the total unless the capacity line is there
            first = first if last - 1 in (self.limit, -1) else last - 1
            last = first + 1
        row = []
        for cell in range(self.cells):
            inside = first <= cell < last
            if cell == self.limit:
                row.append(("limit", "dim"))
            elif inside:
                row.append((glyph, "bad-bar" if cell > self.limit else style))
            else:
                row.append(("", ""))
        return self._draw(row)

    def _cell(self, count: int) -> int:
        """The cell of a number of bytes. After rounding, too, bytes below the capacity are left of its line."""
        cell = round(count / self.full * self.cells)
        return min(cell, self.cells - 1) if count < self.full else self.cells

    def _draw(self, row: list[tuple[str, str]]) -> str:
        out: list[str] = []
        index = 0
        while index < len(row):
            stop = index
            while stop < len(row) and row[stop] == row[index]:
                stop += 1
            glyph, style = row[index]
            text = (self.screen.glyph(glyph) if glyph else " ") * (stop - index)
            out.append(self.screen.paint(text, style))
            index = stop
        return "".join(out)
