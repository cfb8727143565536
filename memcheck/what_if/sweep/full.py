"""The sweep for a terminal: counts, then a row per point; of many points the fastest that fit."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, gib, percent, value, width, wrap
from memcheck.memory.fit import ABOVE, FITS, TOO_LARGE, UNCERTAIN
from memcheck.report.columns import GAP, fitting, left_out
from memcheck.what_if.compare.cells import verdict
from memcheck.what_if.points.types import HOST, ILLEGAL, Point
from memcheck.what_if.sweep.types import Sweep

MOST_ROWS = 60
"""More rows than this are not read in a terminal."""
STYLES = {FITS: "good", UNCERTAIN: "warning"}
EXPENDABLE = (5, 3, 4)
"""Figures that a narrow screen does without, the first of them first."""
FIGURES = ("verdict", "peak GiB", "used", "left GiB", "tokens/s/GPU", "TFLOPS")
NONE = "-"


def render(sweep: Sweep, screen: Screen, most: int = MOST_ROWS) -> str:
    """A line of counts, the table, the reasons of what is illegal."""
    lines = wrap(clean(headline(sweep)), screen.columns)
    shown, hidden = chosen(sweep, most)
    keys = tuple(each.key for each in sweep.axes)
    table = [_cells(sweep, point) for point in shown]
    figures = len(keys) + 1
    heads, widths = _heads(short_keys(keys), table)
    if sum(widths) + len(GAP) * (len(widths) - 1) > screen.columns:  # the keys are longer than what stands below them
        letters = [chr(ord("a") + index % 26) for index in range(len(keys))]
        lines += [clean(f"{letter} = {key}") for letter, key in zip(letters, keys, strict=True)]
        heads, widths = _heads(letters, table)
    kept = fitting(widths, [len(keys) + index for index in EXPENDABLE], screen.columns)
    lines += ["", screen.paint(_line(heads, widths, figures, kept).rstrip(), "dim")]
    for point, line in zip(shown, table, strict=True):
        lines.append(screen.paint(_line(line, widths, figures, kept).rstrip(), STYLES.get(point.verdict, "error")))
    lines.append("")
    if hidden:
        which = "the fastest that fit" if shown and shown[0].verdict in STYLES else "those that come closest to fitting"
        text = f"{hidden:,} points are not shown: these are {which}. --format csv, json or html has all."
        lines += wrap(text, screen.columns)
    lines += wrap(left_out(heads, kept), screen.columns) if len(kept) < len(heads) else []
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
        (sweep.count(FITS), "fits" if sweep.count(FITS) == 1 else "fit"),
        (sweep.count(UNCERTAIN), "uncertain"),
        (sweep.count(ABOVE), "above the limit"),
        (sweep.count(TOO_LARGE), "does not fit" if sweep.count(TOO_LARGE) == 1 else "do not fit"),
        (sweep.count(HOST), "without enough host memory"),
        (sweep.count(ILLEGAL), "illegal"),
    )
    told = ", ".join(f"{count:,} {word}" for count, word in found if count)
    points = "1 point" if len(sweep.points) == 1 else f"{len(sweep.points):,} points"
    return f"{points}: {told}"


def chosen(sweep: Sweep, most: int) -> tuple[list[Point], int]:
    """The rows to show, in the grid's order, and how many are left out.

    Of too many points, the fastest that fit; where none does, those that need the least.
    """
    points = list(sweep.points)
    if len(points) <= most:
        return points, 0
    best = [point for point in points if point.verdict == FITS] or [p for p in points if p.verdict == UNCERTAIN]
    best.sort(key=lambda p: (-speed(p), p.utilization))
    best = best or sorted((p for p in points if p.estimated), key=lambda p: p.utilization) or points
    shown = best[:most]
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
        gib(point.needed_bytes),
        percent(point.utilization),
        gib(point.headroom_bytes),
        NONE if step is None else f"{step.tokens_per_second_per_gpu:,.0f}",
        NONE if step is None else f"{step.model_tflops_per_gpu:,.0f}",
    )


def _line(row: tuple[str, ...], widths: list[int], figures: int, kept: list[int]) -> str:
    parts = []
    for index in kept:
        pad = " " * (widths[index] - width(row[index]))
        parts.append(pad + row[index] if index >= figures else row[index] + pad)
    return GAP.join(parts)
