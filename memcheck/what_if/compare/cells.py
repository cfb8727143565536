"""The figures of a row in words, for every format that people read."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.edge.text import gib, percent
from memcheck.memory.fit import ABOVE, FITS, TOO_LARGE, UNCERTAIN
from memcheck.what_if.compare.types import ComparedPoint, Comparison
from memcheck.what_if.points.types import HOST, ILLEGAL, Point

HEADS = ("GPU", "verdict", "peak GiB", "used", "left GiB", "batch", "recompute", "speed", "TFLOPS")
RIGHT = frozenset(range(2, 10))
"""Indices of the columns of figures, which are aligned to the right."""
EXPENDABLE = (6, 8, 5, 4, 7)
"""Columns that a narrow screen does without, the first of them first."""
PRICE = "per M tokens"
"""The column of what a million tokens cost, which is there where the configuration has prices."""
WORDS = {
    FITS: "fits",
    UNCERTAIN: "uncertain",
    ABOVE: "above limit",
    TOO_LARGE: "does not fit",
    HOST: "host too small",
}
NONE = "-"


def verdict(point: Point) -> str:
    """``fits``, ``uncertain``, ``does not fit``, or the code of what is wrong."""
    if point.verdict == ILLEGAL:
        return point.codes[0] if point.codes else "illegal"
    return WORDS[point.verdict]


def heads(comparison: Comparison) -> tuple[str, ...]:
    """The names of the columns."""
    return (*HEADS, PRICE) if comparison.priced else HEADS


def cells(row: ComparedPoint, *, priced: bool = False) -> tuple[str, ...]:
    """One cell per head; ``priced``: with the column of prices."""
    cost = row.price_per_million_tokens
    return (*_figures(row), *((NONE if cost is None else f"{cost:,.3g}",) if priced else ()))


def _figures(row: ComparedPoint) -> tuple[str, ...]:
    point, size = row.point, row.point.size
    name = f"{row.gpu} *" if row.as_written else row.gpu
    if not point.estimated:
        return (name, verdict(point), *(NONE,) * 7)
    step = point.step
    return (
        name,
        verdict(point),
        gib(point.needed_bytes),
        percent(point.utilization),
        gib(point.headroom_bytes),
        NONE if size is None else f"{size.micro_batch} ({size.global_batch})",
        NONE if size is None or step is None else f"+{size.overhead:.0%}",
        NONE if row.relative_speed is None else f"{row.relative_speed:.2f}x",
        NONE if step is None else f"{step.model_tflops_per_gpu:,.0f}",
    )


def legend(comparison: Comparison, shown: Sequence[str]) -> str:
    """What the columns that are shown hold."""
    told = ["batch: sequences per GPU and pass (per step)."] if "batch" in shown else []
    told += ["recompute: arithmetic that it adds."] if "recompute" in shown else []
    times = [f"speed: tokens per second and GPU, relative to {comparison.reference}"] if "speed" in shown else []
    times += ["TFLOPS: of the model, per GPU"] if "TFLOPS" in shown else []
    if comparison.reference and times:
        source = "both from" if len(times) > 1 else "from"
        told.append(f"{'; '.join(times)}; {source} a roofline model that ranks, not a measurement.")
    if PRICE in shown:
        told.append(f"{PRICE}: price of a million tokens, from [prices] and the modelled speed.")
    return " ".join(told)


def notes(rows: tuple[ComparedPoint, ...]) -> list[str]:
    """What the table leaves out: why rows are illegal or untimed and what was assumed, each once."""
    found: dict[str, list[ComparedPoint]] = {}
    for row in rows:
        step = row.point.step
        texts = [f"{problem.code}: {problem.message}" for problem in row.point.problems]
        texts += [row.point.untimed] if row.point.untimed else []
        texts += [f"assumed {a.key} = {a.value}: {a.why}" for a in (step.assumptions if step is not None else ())]
        for text in texts:
            found.setdefault(text, []).append(row)
    return [f"{places(about, rows)}: {text}" for text, about in found.items()]


def places(about: list[ComparedPoint], rows: tuple[ComparedPoint, ...]) -> str:
    """The rows of a note in as few words as possible: all, GPUs, plans, or both."""
    if len(about) == len(rows):
        return "every row" if len(rows) > 1 else about[0].gpu
    named = {row.gpu for row in about}
    if sum(row.gpu in named for row in rows) == len(about):
        return ", ".join(dict.fromkeys(row.gpu for row in about))
    plans = {(row.path, row.document) for row in about}
    if sum((row.path, row.document) in plans for row in rows) == len(about):
        return ", ".join(dict.fromkeys(row.plan for row in about))
    return ", ".join(f"{row.plan} on {row.gpu}" for row in about)
