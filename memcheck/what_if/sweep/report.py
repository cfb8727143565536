"""The sweep for people and for programs: one document, and the formats that draw it or list its points."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from itertools import product

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, clean, gib, percent, value
from memcheck.memory.fit import ABOVE, FITS, TOO_LARGE, UNCERTAIN
from memcheck.report import text
from memcheck.report.csv import cell
from memcheck.report.html.grid import page_of
from memcheck.report.story import Prose
from memcheck.report.story.blocks import NO_ROOM, ColumnNote, Fact, Facts, Grid, GridCell, Section, Table
from memcheck.what_if.compare.report import TONES, tokens, verdict
from memcheck.what_if.points import COLUMNS, HOST, ILLEGAL, VERDICTS, Point, cells, record
from memcheck.what_if.sweep import Axis, Sweep

MOST_ROWS = 60
"""More rows than this are not read in a terminal."""
OPTIONAL = (5, 3, 4)
"""Figures that a narrow screen drops, the first of them first."""
FIGURES = ("verdict", "peak GiB", "used", "left GiB", "tokens/s/GPU", "TFLOPS")
NONE = "-"
FASTEST = 10
OPEN_MAPS = 12
"""More maps than this start closed."""


def full(sweep: Sweep, screen: Screen, most: int = MOST_ROWS) -> str:
    """A line of counts, the table, and why points are illegal."""
    return "\n".join(text.lines((Prose(headline(sweep)), points_table(sweep, most)), screen)) + "\n"


def json(sweep: Sweep, screen: Screen | None = None) -> str:
    """Return ``schemas/sweep.schema.json``, version 1: fields may be added, never removed. A point is a line."""
    head = dumps(summary(sweep), indent=1).removesuffix("\n}")
    points = ",\n  ".join(dumps({"set": dict(point.set), **record(point)}) for point in sweep.points)
    return f'{head},\n "points": [\n  {points}\n ]\n}}\n'


def summary(sweep: Sweep) -> dict[str, object]:
    """Return the JSON object of a sweep without its points."""
    return {
        "sweep": 1,
        "memcheck": sweep.version,
        "plan": sweep.plan,
        "path": sweep.path,
        "axes": [{"key": each.key, "values": list(each.values)} for each in sweep.axes],
        "summary": {verdict: sweep.count(verdict) for verdict in VERDICTS},
    }


def spreadsheet(sweep: Sweep, screen: Screen | None = None) -> str:
    """Return a line of names, then the points in the grid's order; the screen plays no part."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = [each.key for each in sweep.axes]
    writer.writerow([*map(cell, keys), *COLUMNS])
    for point in sweep.points:
        values = [_plain(point.set[key]) for key in keys]
        writer.writerow([cell(each) for each in [*values, *cells(point)]])
    return out.getvalue()


def _plain(item: object) -> object:
    """Numbers stay numbers; everything else is written as YAML would."""
    return item if isinstance(item, (int, float)) and not isinstance(item, bool) else value(item)


def html(sweep: Sweep, screen: Screen | None = None) -> str:
    """Return a complete page with the heat maps; the screen plays no part."""
    axes = tuple((each.key, len(each.values)) for each in sweep.axes)
    told = tuple(section for section in (fastest(sweep), refusals(sweep)) if section is not None)
    return page_of(sweep.plan, sweep.path, f"{counts(sweep)}.", axes, grids(sweep), told, version=sweep.version)


FORMATS: dict[str, Callable[[Sweep, Screen], str]] = {"full": full, "csv": spreadsheet, "json": json, "html": html}


def points_table(sweep: Sweep, most: int = MOST_ROWS) -> Table:
    """Return a row per point; of many points the fastest that fit."""
    shown, left = chosen(sweep, most)
    keys = tuple(each.key for each in sweep.axes)
    letters = tuple(chr(ord("a") + index % 26) for index in range(len(keys)))
    notes = [NO_ROOM]
    if left:
        which = "the fastest that fit" if shown and shown[0].verdict in TONES else "those that come closest to fitting"
        told = f"{left:,} points are not shown: these are {which}. --format csv, json or html has all."
        notes.insert(0, ColumnNote(told))
    notes += [ColumnNote(f"{code} ({count:,}): {message}") for code, (count, message) in reasons(sweep).items()]
    serves = any(point.kv_tokens is not None for point in sweep.points)
    figures = (*FIGURES, "KV tokens") if serves else FIGURES
    speeds = "tokens/s and TFLOPS come from a roofline model that ranks; they are no measurement."
    return Table(
        caption="",
        heads=(*short_keys(keys), *figures),
        rows=tuple((*_row(sweep, point), *((tokens(point),) if serves else ())) for point in shown),
        right=tuple(range(len(keys) + 1, len(keys) + len(figures))),
        optional=tuple(len(keys) + index for index in OPTIONAL),
        tones=tuple(TONES.get(point.verdict, "bad") for point in shown),
        notes=(*notes, ColumnNote(speeds, tone="dim")),
        short_heads=(*letters, *figures),
        short_notes=tuple(f"{letter} = {key}" for letter, key in zip(letters, keys, strict=True)),
    )


def headline(sweep: Sweep) -> str:
    """``plan: 96 points: 40 fit, 6 uncertain, 30 do not fit, 20 illegal``."""
    return f"{sweep.plan}: {counts(sweep)}"


def counts(sweep: Sweep) -> str:
    """Return ``96 points: 40 fit, 6 uncertain, 30 do not fit, 20 illegal``."""
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
    """Return the rows to show, in the grid's order, and how many are left out.

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
    """Return keys without their section where that leaves them apart."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for name, key in zip(last, keys, strict=True)]


def _row(sweep: Sweep, point: Point) -> tuple[str, ...]:
    """Return one point as texts: the values of its axes, the verdict, and its figures."""
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


def grids(sweep: Sweep) -> tuple[Grid, ...]:
    """Return a heat map for every combination of the outer axes: the last axis is the columns, the one before it the
    rows.
    """
    axes = sweep.axes
    columns = axes[-1] if len(axes) > 1 else Axis("", ("",))
    rows, outer = axes[-2] if len(axes) > 1 else axes[0], axes[:-2]
    names = short_keys(tuple(each.key for each in outer))
    wide = len(columns.values)
    size = len(rows.values) * wide
    combinations = list(product(*(each.values for each in outer)))
    corner = f"{rows.key} ↓ {columns.key} →" if columns.key else rows.key
    found = []
    for index, values in enumerate(combinations):
        points = sweep.points[index * size : (index + 1) * size]
        cells = tuple(tuple(map(grid_cell, points[at : at + wide])) for at in range(0, size, wide))
        fitting = sum(point.verdict == FITS for point in points)
        found.append(
            Grid(
                id=f"grid-{index}",
                title=", ".join(f"{name} {value(item)}" for name, item in zip(names, values, strict=True)),
                caption=f"Device memory needed, of capacity; below it tokens per second and GPU. {corner}",
                row_key=rows.key.rpartition(".")[2],
                rows=tuple(value(item) for item in rows.values),
                columns=tuple(value(item) if columns.key else "used" for item in columns.values),
                cells=cells,
                summary=f"{fitting} of {len(points)} fit",
                opened=len(combinations) <= OPEN_MAPS,
            )
        )
    return tuple(found)


def grid_cell(point: Point) -> GridCell:
    """Return the share of the memory with a sign for its verdict; the code of the rule where a point is refused."""
    problems = [f"{problem.code} {problem.message}" for problem in point.problems]
    if not point.estimated:
        return GridCell(point.codes[0] if point.codes else "illegal", "refused", detail="; ".join(problems))
    sign = {FITS: "", UNCERTAIN: "? ", ABOVE: "! "}.get(point.verdict, "× ")
    told = f"{gib(point.needed_bytes)} GiB of {gib(point.capacity_bytes)}, peak in {point.instant}"
    return GridCell(
        figure=f"{sign}{percent(point.utilization)}",
        tone=grid_tone(point),
        rate=f"{point.step.tokens_per_second_per_gpu:,.0f}" if point.step is not None else "",
        detail="; ".join([told, *problems]),
    )


def grid_tone(point: Point) -> str:
    """Return the verdict on a point, with the degree where it fits or does not fit."""
    used = point.utilization
    plain = {ILLEGAL: "refused", UNCERTAIN: "uncertain", ABOVE: "above-limit", HOST: "host-too-small"}
    if point.verdict in plain:
        return plain[point.verdict]
    limits = (0.5, 0.7, 0.9, 1.0) if point.verdict == FITS else (1.2, 2.0)
    degree = next((f"-{limit:.0%}".rstrip("%") for limit in limits if used <= limit), "")
    return ("fits" if point.verdict == FITS else "too-large") + degree


def fastest(sweep: Sweep) -> Section | None:
    """Return the fastest points that fit; None where no point has a time and fits."""
    ranked = sorted((p for p in sweep.points if p.verdict == FITS and p.step is not None), key=speed, reverse=True)
    if not ranked:
        return None
    keys = short_keys(tuple(each.key for each in sweep.axes))
    rows = tuple(
        (*(value(point.set[each.key]) for each in sweep.axes), percent(point.utilization), f"{speed(point):,.0f}")
        for point in ranked[:FASTEST]
    )
    right = (len(keys), len(keys) + 1)
    table = Table("the fastest points that fit", (*keys, "used", "tokens/s/GPU"), rows, right=right)
    return Section("fastest", "Fastest that fit", (Prose("By a roofline model that ranks; no measurement."), table))


def refusals(sweep: Sweep) -> Section | None:
    """Say why points fail, by the code of the rule; None where no rule refuses a point."""
    found = reasons(sweep)
    rows = tuple(Fact(f"{code} ({count:,})", message) for code, (count, message) in found.items())
    return Section("refusals", "Why points fail", (Facts(rows),)) if rows else None
