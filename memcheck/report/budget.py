"""The memory budget of one GPU as aligned rows: a waterfall of components against the capacity line."""

from __future__ import annotations

from memcheck.memory.types import COMPONENTS, Estimate
from memcheck.report.screen import Screen
from memcheck.report.text import gib, percent, width, words, wrap
from memcheck.result import PlanResult

FIGURES = 25
"""Columns of the two figures with the space around them: ``      12.34   123.4%``."""
LEAST_BAR = 10
NAMED_CACHE_BYTES = 2**30
"""Cache from which on a reader should know that it is no need of the step."""


def budget(plan: PlanResult, estimate: Estimate, screen: Screen) -> list[str]:
    """Rows for every component that holds memory, then what is needed, the capacity and what is left or missing."""
    capacity = estimate.capacity_bytes
    capacity_label = f"capacity of {plan.gpu}" if plan.gpu else "capacity"
    held = [(name, estimate.components_bytes.get(name, 0)) for name in COMPONENTS]
    held = [(name, count) for name, count in held if count > 0]
    labels = [words(name) for name, _ in held] + [capacity_label, "device memory needed"]
    first = max(width(label) for label in labels)
    room = screen.columns - first - FIGURES
    scale = Scale(max(estimate.device_bytes, capacity, 1), capacity, room if room >= LEAST_BAR else 0, screen)

    lines = [screen.paint(f"{'memory of one GPU'.ljust(first)}{'GiB'.rjust(11)}{'of capacity'.rjust(13)}", "dim")]
    start = 0
    for name, count in held:
        figures = _figures(words(name), first, count, capacity)
        lines.append(f"{figures} {scale.bar(start, count, 'bar')}".rstrip())
        start += count
    style = tone(plan, estimate)
    lines.append(screen.paint(screen.glyph("rule") * (first + FIGURES + scale.cells), "dim"))
    needed = _figures("device memory needed", first, estimate.device_bytes, capacity)
    lines.append(f"{screen.paint(needed, 'strong')} {scale.bar(0, estimate.device_bytes, style)}".rstrip())
    lines.append(f"{_figures(capacity_label, first, capacity, capacity)} {scale.bar(0, 0, '')}".rstrip())
    slack = capacity - estimate.device_bytes
    verdict = _figures("missing" if slack < 0 else "left", first, abs(slack), capacity)
    lines.append(screen.paint(verdict, "error" if slack < 0 else "strong"))
    if estimate.cache_bytes >= NAMED_CACHE_BYTES:
        note = f"{gib(estimate.cache_bytes)} of fragmentation is cache, returned when memory is short"
        lines += [screen.paint(line, "dim") for line in wrap(note, screen.columns)]
    return lines


def tone(plan: PlanResult, estimate: Estimate) -> str:
    """The style of a plan's bar: what its status says, not its length alone."""
    if estimate.utilization > 1 or plan.status != "passed":
        return "bad-bar"
    return "warning-bar" if plan.count("warning") else "good-bar"


def gauge(plan: PlanResult, estimate: Estimate, cells: int, screen: Screen) -> str:
    """One horizontal bar: what is used, what is free, and a mark where the plan's policy says stop."""
    full = max(estimate.device_bytes, estimate.capacity_bytes, 1)
    used = min(cells, max(1, round(estimate.device_bytes / full * cells)))
    limit = min(estimate.capacity_bytes, full) * plan.fail_above / full
    at = min(cells - 1, round(limit * cells))
    chars = [screen.glyph("full")] * used + [screen.glyph("track")] * (cells - used)
    style = tone(plan, estimate)
    if at >= used:
        chars[at] = screen.glyph("limit")
    filled = screen.paint("".join(chars[:used]), style)
    return filled + screen.paint("".join(chars[used:]), "dim")


def _figures(label: str, first: int, count: int, capacity: int) -> str:
    share = percent(count / capacity) if capacity else ""
    return f"{label}{' ' * (first - width(label))}{gib(count).rjust(11)}{share.rjust(13)}"


class Scale:
    """Bytes to terminal cells, with the capacity line drawn through every row."""

    def __init__(self, full: int, capacity: int, cells: int, screen: Screen) -> None:
        self.full = full
        self.cells = cells
        self.screen = screen
        over = full > capacity
        self.limit = min(round(capacity / full * (cells - 1)), cells - 2) if over else cells - 1

    def bar(self, start: int, count: int, style: str) -> str:
        """A stretch from ``start`` over ``count`` bytes; the part behind the capacity line is shown in red."""
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
                row.append(("full", "bad-bar" if cell > self.limit else style))
            else:
                row.append(("", ""))
        return self._draw(row)

    def _cell(self, count: int) -> int:
        """Bytes below the capacity stay left of its line, bytes above it right of it, whatever rounding says."""
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
