"""The comparison for people and for programs: one document, and the formats that draw it or list its figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import TypeVar

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, gib, percent
from memcheck.memory.fit import ABOVE, FITS, TOO_LARGE, UNCERTAIN
from memcheck.report import text
from memcheck.report.csv import cell
from memcheck.report.markdown import comparison as drawn
from memcheck.report.markdown import escape
from memcheck.report.story import Prose
from memcheck.report.story.blocks import NO_ROOM, ColumnNote, Compared, Comparison, Quantity
from memcheck.what_if.compare import ComparedPoint, GpuComparison
from memcheck.what_if.points import COLUMNS, HOST, ILLEGAL, Point, record
from memcheck.what_if.points import cells as figures_of

QUANTITIES = (
    Quantity("verdict"),
    Quantity("peak GiB", "low", "GiB"),
    Quantity("used", "low", "of capacity"),
    Quantity("left GiB", "high", "GiB"),
    Quantity("batch"),
    Quantity("recompute", "low", "of the arithmetic"),
    Quantity("speed", "high", "of the reference"),
    Quantity("TFLOPS", "high", "TFLOPS per GPU"),
)
OF_TRAINING = (4, 5)
"""Columns that say nothing of a serving engine, which makes its own batches: batch and recompute."""
_Figure = TypeVar("_Figure")
OPTIONAL = (6, 8, 5, 4, 7)
"""Columns of the table, whose first is the GPU, that a narrow screen drops; the first of them first."""
PRICE = Quantity("per M tokens", "low", "money")
"""What a million tokens cost, where the configuration has prices."""
TOKENS = Quantity("KV tokens", "high", "tokens")
"""Tokens of KV cache of a serving engine, where a plan has one."""
PRICES = ("price_per_gpu_hour", "price_per_million_tokens")
HEADS = ("plan", "path", "document", "gpu", "as_written", *COLUMNS, "relative_speed", *PRICES)
WORDS = {
    FITS: "fits",
    UNCERTAIN: "uncertain",
    ABOVE: "above limit",
    TOO_LARGE: "does not fit",
    HOST: "host too small",
}
TONES = {FITS: "good", UNCERTAIN: "warn"}
NONE = "-"


def full(comparison: GpuComparison, screen: Screen) -> str:
    """The table for a terminal, its legend and its notes."""
    return "\n".join(text.lines((document(comparison), *notes(comparison.failing_first)), screen)) + "\n"


def markdown(comparison: GpuComparison, screen: Screen | None = None) -> str:
    """Return the table for GitHub, its legend and its notes; the screen plays no part."""
    lines = drawn(document(comparison), "plan")
    told = notes(comparison.failing_first)
    lines += ["", *(f"- {escape(note.text)}" for note in told)] if told else []
    return "\n".join(lines) + "\n"


def json(comparison: GpuComparison, screen: Screen | None = None) -> str:
    """Return ``schemas/compare.schema.json``, version 1: fields may be added, never removed. The screen plays no
    part.
    """
    found = {
        "compare": 1,
        "memcheck": comparison.version,
        "reference": comparison.reference or None,
        "rows": [_row(row) for row in comparison.rows],
    }
    return dumps(found, indent=1) + "\n"


def _row(row: ComparedPoint) -> dict[str, object]:
    """Return one row of a comparison as JSON values."""
    speed = row.relative_speed
    return {
        "plan": row.plan,
        "path": row.path,
        "document": row.document,
        "gpu": row.gpu,
        "as_written": row.as_written,
        **record(row.point),
        "relative_speed": None if speed is None else round(speed, 4),
        "price_per_gpu_hour": row.price_per_gpu_hour,
        "price_per_million_tokens": row.price_per_million_tokens,
    }


def spreadsheet(comparison: GpuComparison, screen: Screen | None = None) -> str:
    """Return a line of names, then one line per plan and GPU; the screen plays no part."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADS)
    for row in comparison.rows:
        speed = "" if row.relative_speed is None else round(row.relative_speed, 4)
        prices = (row.price_per_gpu_hour, row.price_per_million_tokens)
        line = [row.plan, row.path, row.document, row.gpu, row.as_written, *figures_of(row.point), speed, *prices]
        writer.writerow([cell(value) for value in line])
    return out.getvalue()


FORMATS: dict[str, Callable[[GpuComparison, Screen], str]] = {
    "full": full,
    "json": json,
    "csv": spreadsheet,
    "markdown": markdown,
}


def document(comparison: GpuComparison) -> Comparison:
    """Return GPUs by quantities; of each plan, those on which it fails come first."""
    several = comparison.plans > 1
    own = any(row.as_written for row in comparison.rows)
    serves = any(row.point.kv_tokens is not None for row in comparison.rows)
    trains = any(row.point.estimated and row.point.kv_tokens is None for row in comparison.rows)
    shown = [number for number in range(len(QUANTITIES)) if trains or not serves or number not in OF_TRAINING]
    shown += range(len(QUANTITIES), len(QUANTITIES) + comparison.priced + serves)
    quantities = (*QUANTITIES, *((PRICE,) if comparison.priced else ()), *((TOKENS,) if serves else ()))
    return Comparison(
        id="comparison",
        subject="GPU",
        quantities=tuple([quantities[number] for number in shown]),
        subjects=tuple(
            Compared(
                label=row.gpu,
                figures=_only(shown, (*figures(row, priced=comparison.priced), tokens(row.point))),
                values=_only(shown, (*values(row, priced=comparison.priced), row.point.kv_tokens)),
                tone=TONES.get(row.point.verdict, "bad"),
                name=row.plan,
                group=(row.plan if row.plan in row.path else f"{row.plan}  {row.path}") if several else "",
                own=row.as_written,
            )
            for row in comparison.failing_first
        ),
        own_mark="*",
        own_words="(as written)",
        optional=tuple([1 + shown.index(each - 1) for each in OPTIONAL if each - 1 in shown]),
        notes=(*((ColumnNote("* as the plan has it.", tone="dim", own=True),) if own else ()), *legend(comparison)),
    )


def _only(shown: list[int], every: tuple[_Figure, ...]) -> tuple[_Figure, ...]:
    """The figures of the quantities that are shown, by their numbers."""
    return tuple([every[number] for number in shown])


def verdict(point: Point) -> str:
    """Return ``fits``, ``uncertain``, ``does not fit``, or the code of what is wrong."""
    if point.verdict == ILLEGAL:
        return point.codes[0] if point.codes else "illegal"
    return WORDS[point.verdict]


def tokens(point: Point) -> str:
    """Tokens of KV cache of a serving engine: ``457,744``; ``-`` for other plans, and where it does not boot."""
    return f"{point.kv_tokens:,}" if point.kv_tokens else NONE


def figures(row: ComparedPoint, *, priced: bool) -> tuple[str, ...]:
    """Return a text per quantity; ``priced``: with the price."""
    point, size, cost = row.point, row.point.size, row.price_per_million_tokens
    price = (NONE if cost is None else f"{cost:,.3g}",) if priced else ()
    if not point.estimated:
        return (verdict(point), *(NONE,) * (len(QUANTITIES) - 1), *price)
    step = point.step
    return (
        verdict(point),
        gib(point.needed_bytes),
        percent(point.utilization),
        gib(point.headroom_bytes),
        NONE if size is None else f"{size.micro_batch} ({size.global_batch})",
        NONE if size is None or step is None else f"+{size.overhead:.0%}",
        NONE if row.relative_speed is None else f"{row.relative_speed:.2f}x",
        NONE if step is None else f"{step.model_tflops_per_gpu:,.0f}",
        *price,
    )


def values(row: ComparedPoint, *, priced: bool) -> tuple[float | None, ...]:
    """Return a number per quantity: bytes, shares, TFLOPS, money; None where there is none."""
    point, step, size = row.point, row.point.step, row.point.size
    known: tuple[float | None, ...] = (
        (
            point.needed_bytes,
            point.utilization,
            point.headroom_bytes,
            None,
            None if size is None or step is None else size.overhead,
            row.relative_speed,
            None if step is None else step.model_tflops_per_gpu,
        )
        if point.estimated
        else (None,) * (len(QUANTITIES) - 1)
    )
    return (None, *known, *((row.price_per_million_tokens,) if priced else ()))


def legend(comparison: GpuComparison) -> tuple[ColumnNote, ...]:
    """Return what the columns mean that are shown."""
    notes = [
        ColumnNote("batch: sequences per GPU and pass (per step).", ("batch",)),
        ColumnNote("recompute: arithmetic that it adds.", ("recompute",)),
        ColumnNote(f"{TOKENS.name}: what the engine's cache holds at once.", (TOKENS.name,)),
    ]
    if comparison.reference:
        speed = f"speed: tokens per second and GPU, relative to {comparison.reference}"
        rate, model = "TFLOPS: of the model, per GPU", "a roofline model that ranks, not a measurement."
        notes += [
            ColumnNote(f"{speed}; {rate}; both from {model}", ("speed", "TFLOPS")),
            ColumnNote(f"{speed}; from {model}", ("speed",), ("TFLOPS",)),
            ColumnNote(f"{rate}; from {model}", ("TFLOPS",), ("speed",)),
        ]
    price = PRICE.name
    notes.append(ColumnNote(f"{price}: price of a million tokens, from [prices] and the modelled speed.", (price,)))
    return tuple(note._replace(tone="dim") for note in (*notes, NO_ROOM))


def notes(rows: tuple[ComparedPoint, ...]) -> list[Prose]:
    """Return what the table leaves out: why rows are illegal or untimed and what was assumed, each once."""
    found: dict[str, list[ComparedPoint]] = {}
    for row in rows:
        step = row.point.step
        texts = [f"{problem.code}: {problem.message}" for problem in row.point.problems]
        texts += [row.point.untimed] if row.point.untimed else []
        texts += [f"assumed {a.key} = {a.value}: {a.why}" for a in (step.assumptions if step is not None else ())]
        for each in texts:
            found.setdefault(each, []).append(row)
    return [Prose(f"{places(about, rows)}: {each}") for each, about in found.items()]


def places(about: list[ComparedPoint], rows: tuple[ComparedPoint, ...]) -> str:
    """Return the rows of a note in as few words as possible: all, GPUs, plans, or both."""
    if len(about) == len(rows):
        return "every row" if len(rows) > 1 else about[0].gpu
    named = {row.gpu for row in about}
    if sum(row.gpu in named for row in rows) == len(about):
        return ", ".join(dict.fromkeys(row.gpu for row in about))
    plans = {(row.path, row.document) for row in about}
    if sum((row.path, row.document) in plans for row in rows) == len(about):
        return ", ".join(dict.fromkeys(row.plan for row in about))
    return ", ".join(f"{row.plan} on {row.gpu}" for row in about)
