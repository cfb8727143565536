"""The sweep for a terminal: counts, then a row per point; of many points the fastest that fit."""

from __future__ import annotations

from memcheck.compare.cells import verdict
from memcheck.points.types import FITS, ILLEGAL, TOO_LARGE, UNCERTAIN, Point
from memcheck.report.screen import Screen
from memcheck.report.text import clean, gib, percent, value, width, wrap
from memcheck.sweep.types import Sweep

GAP = "  "
MOST_ROWS = 60
"""More rows than this are not read in a terminal."""
STYLES = {FITS: "good", UNCERTAIN: "warning"}
FIGURES = ("verdict", "peak GiB", "used", "left GiB", "tokens/s/GPU", "TFLOPS")
NONE = "-"


def render(sweep: Sweep, screen: Screen, most: int = MOST_ROWS) -> str:
    """A line of counts, the table, the reasons of what is illegal."""
    lines = wrap(clean(headline(sweep)), screen.columns)
    shown, left_out = chosen(sweep, most)
    keys = tuple(each.key for each in sweep.axes)
    table = [_cells(sweep, point) for point in shown]
    figures = len(keys) + 1
    heads, widths = _heads(short_keys(keys), table)
    if sum(widths) + len(GAP) * (len(widths) - 1) > screen.columns:  # the keys are longer than what stands below them
        letters = [chr(ord("a") + index % 26) for index in range(len(keys))]
        lines += [clean(f"{letter} = {key}") for letter, key in zip(letters, keys, strict=True)]
        heads, widths = _heads(letters, table)
    lines += ["", screen.paint(_line(heads, widths, figures).rstrip(), "dim")]
    for point, line in zip(shown, table, strict=True):
        lines.append(screen.paint(_line(line, widths, figures).rstrip(), STYLES.get(point.verdict, "error")))
    lines.append("")
    if left_out:
        text = f"{left_out:,} points are not shown: these are the fastest that fit. --format csv, json or html has all."
        lines += wrap(text, screen.columns)
    for code, (count, message) in reasons(sweep).items():
        lines += wrap(clean(f"{code} ({count:,}): {message}"), screen.columns)
    speeds = "tokens/s and TFLOPS come from a roofline model that ranks; they are no measurement."
    lines += [screen.paint(line, "dim") for line in wrap(speeds, screen.columns)]
    return "\n".join(lines) + "\n"


def _heads(keys: list[str], table: list[tuple[str, ...]]) -> tuple[tuple[str, ...], list[int]]:
    """Column heads, and the width of every column."""
    heads = (*keys, *FIGURES)
    return heads, [max(width(line[i]) for line in [heads, *table]) for i in range(len(heads))]


def headline(sweep: Sweep) -> str:
    """``plan: 96 points: 40 fit, 6 uncertain, 30 do not fit, 20 illegal``."""
    return f"{sweep.plan}: {counts(sweep)}"


def counts(sweep: Sweep) -> str:
    """``96 points: 40 fit, 6 uncertain, 30 do not fit, 20 illegal``."""
    found = (
        (sweep.count(FITS), "fit"),
        (sweep.count(UNCERTAIN), "uncertain"),
        (sweep.count(TOO_LARGE), "do not fit"),
        (sweep.count(ILLEGAL), "illegal"),
    )
    told = ", ".join(f"{count:,} {word}" for count, word in found if count)
    points = "1 point" if len(sweep.points) == 1 else f"{len(sweep.points):,} points"
    return f"{points}: {told}"


def chosen(sweep: Sweep, most: int) -> tuple[list[Point], int]:
    """The rows to show, in the grid's order, or the fastest that fit when there are too many; how many are left out."""
    points = list(sweep.points)
    if len(points) <= most:
        return points, 0
    fitting = [point for point in points if point.verdict == FITS] or [p for p in points if p.verdict == UNCERTAIN]
    fitting.sort(key=lambda p: (-speed(p), p.utilization))
    shown = fitting[:most]
    return shown, len(points) - len(shown)


def speed(point: Point) -> float:
    """Tokens per second and GPU; 0 without a time."""
    return point.step.tokens_per_second_per_gpu if point.step is not None else 0.0


def reasons(sweep: Sweep) -> dict[str, tuple[int, str]]:
    """Per code of what is illegal: how often, and the first message."""
    found: dict[str, tuple[int, str]] = {}
    for point in sweep.points:
        for problem in point.problems:
            count, message = found.get(problem.code, (0, problem.message))
            found[problem.code] = (count + 1, message)
    return dict(sorted(found.items()))


def short_keys(keys: tuple[str, ...]) -> list[str]:
    """Keys without their section where that leaves them apart."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for name, key in zip(last, keys, strict=True)]


def _cells(sweep: Sweep, point: Point) -> tuple[str, ...]:
    values = [clean(value(point.set[each.key])) for each in sweep.axes]
    if not point.estimated:
        return (*values, verdict(point), *(NONE,) * (len(FIGURES) - 1))
    step = point.step
    return (
        *values,
        verdict(point),
        gib(point.device_bytes),
        percent(point.utilization),
        gib(point.headroom_bytes),
        NONE if step is None else f"{step.tokens_per_second_per_gpu:,.0f}",
        NONE if step is None else f"{step.model_tflops_per_gpu:,.0f}",
    )


def _line(row: tuple[str, ...], widths: list[int], figures: int) -> str:
    parts = []
    for index, (cell, room) in enumerate(zip(row, widths, strict=True)):
        pad = " " * (room - width(cell))
        parts.append(pad + cell if index >= figures else cell + pad)
    return GAP.join(parts)
