"""benchmarks/RESULTS.md, and lines for a terminal."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from benchmarks import outcomes, widths
from benchmarks import readings as readings_by_kind
from benchmarks.cases import Reading, Unpriced, load
from benchmarks.score import Row
from benchmarks.summary import Figures, Half, LeftOut, by_group
from memcheck.memory.allocator import residuals

if TYPE_CHECKING:
    from benchmarks.accuracy import Run

GIB, MIB = 2**30, 2**20
FAR = 0.01
"""A traced case that is off by more than this is owed an explanation."""
TRACED = ("traced", "traced (tied)", "traced (held-out models)", "traced (drawn)")


def line(row: Row) -> str:
    """One case on a terminal."""
    moment = "" if row.phase_agrees is not False else f"  {row.phase}, not {row.case.phase}"
    unsafe = "  ABOVE INTERVAL" if row.unsafe else "" if row.inside else "  below interval"
    return (
        f"{row.case.group:24} {row.error:+8.2%} {row.case.truth_bytes / GIB:9.2f} {row.predicted_bytes / GIB:9.2f} "
        f"[{row.interval_bytes[0] / GIB:.2f}, {row.interval_bytes[1] / GIB:.2f}] {row.case.id}{moment}{unsafe}"
    )


def summary(name: str, f: Figures) -> str:
    """One group on a terminal."""
    moments = f", moment {f.agree}/{f.phases}" if f.phases else ""
    return (
        f"{name:24} {f.n:4} cases: median {f.median:.2%}, p95 {f.p95:.2%}, worst {f.worst:.2%}, "
        f"above interval {f.unsafe}, inside {f.inside}{moments}"
    )


def explanation(case_id: str) -> str | None:
    """Why a case is off, from data/explanations.json (patterns as in a shell)."""
    for pattern, text in load("explanations.json")["cases"].items():
        if fnmatch.fnmatchcase(case_id, pattern):
            return str(text)
    return None


def far(rows: Iterable[Row]) -> list[Row]:
    """Traced cases that are owed an explanation, worst first."""
    found = [r for r in rows if r.case.group in TRACED and abs(r.error) > FAR]
    return sorted(found, key=lambda r: -abs(r.error))


def results(
    done: Run,
    groups: dict[str, Figures],
    left_out: Sequence[LeftOut],
    sources: Sequence[LeftOut],
    halves: Sequence[Half],
    readings: Sequence[Reading],
) -> str:
    """The page."""
    lines = [
        "# Accuracy",
        "",
        "Written by `python -m benchmarks.accuracy --write`; do not edit. How it is done, and what the figures mean:",
        "[docs/internals/accuracy.md](../docs/internals/accuracy.md). Other tools on ten plans: [peers.md](peers.md).",
        "",
        f"{len(done.rows)} cases are priced, {len(done.unpriced)} published records are not (last section).",
        "",
        "![predicted against truth](predicted.svg)",
        "",
        "![error per group](errors.svg)",
        "",
        "## Groups",
        "",
        "Error: prediction over truth, minus one; its absolute value below. *Above*: truths above the upper end of the",
        "interval: a plan might have been called safe and was not. *Inside*: within the interval.",
        "*Moment*: predicted and traced peak fall into the same moment of the step.",
        "",
        "| group | compared with | n | median | p95 | worst | above | inside | moment |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, f in groups.items():
        metric = " or ".join(sorted({r.case.metric for r in done.rows if r.case.group == name}))
        errors = f"{f.median:.2%} | {f.p95:.2%} | {f.worst:.2%}"
        moment = f"{f.agree}/{f.phases}" if f.phases else ""
        lines.append(f"| {name} | {metric} | {f.n} | {errors} | {f.unsafe} | {f.inside}/{f.n} | {moment} |")
    lines += readings_by_kind.section(done.rows, done.apart, done.verdicts)
    lines += readings_by_kind.named(done.verdicts)
    lines += outcomes.section(done.verdicts)
    lines += _explained(done)
    lines += _published(done.rows, sources)
    lines += ["", "Of kinds that something is not known of yet; they are in no figure and no table:", ""]
    lines += apart(done.apart)
    lines += _left_out(left_out)
    lines += _halves(halves)
    lines += widths.section(done.rows)
    lines += _tables()
    lines += _outside(readings)
    for name, rows in by_group(done.rows).items():
        lines += [
            "",
            f"## {name}",
            "",
            "| case | truth GiB | predicted | error | interval | moment |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_row(r) for r in sorted(rows, key=lambda r: -abs(r.error))]
    lines += _unpriced(done.unpriced)
    return "\n".join([*lines, ""])


def _row(row: Row) -> str:
    moment = (
        "" if row.case.phase is None else row.phase if row.phase_agrees else f"{row.phase}, traced {row.case.phase}"
    )
    low, high = row.interval_bytes
    mark = " **above**" if row.unsafe else ""
    note = f"<br>{row.case.note}" if row.case.note else ""
    metric = "" if row.case.metric == "allocated" else f" {row.case.metric}"
    span = f"{low / GIB:.2f} to {high / GIB:.2f}{mark}"
    truth, predicted = f"{row.case.truth_bytes / GIB:.2f}{metric}", f"{row.predicted_bytes / GIB:.2f}"
    return f"| {row.case.id}{note} | {truth} | {predicted} | {row.error:+.2%} | {span} | {moment} |"


def _explained(done: Run) -> list[str]:
    found = ["", "## Cases that are off, explained", "", "Traced cases that are off by more than 1 %:", ""]
    rows = far(done.rows)
    if not rows:
        found.append("None.")
    found += [f"- `{r.case.id}` ({r.error:+.2%}): {explanation(r.case.id) or 'not explained'}" for r in rows]
    found += ["", "What stands behind the larger differences from published figures:", ""]
    return [*found, *(f"- **{name}**: {text}" for name, text in load("explanations.json")["groups"].items())]


def _published(rows: Sequence[Row], sources: Sequence[LeftOut]) -> list[str]:
    """Published readings against their intervals, and against those made without their source."""
    read = [row for row in rows if row.case.published]
    inside, n = sum(row.inside for row in read), len(read)
    held_out, above = sum(each.inside for each in sources), sum(each.above for each in sources)
    lines = [
        "",
        "## Published readings",
        "",
        f"{inside} of {n} readings that somebody published ({inside / n:.1%}) lie inside of their interval.",
        "Each reading counts as one piece of evidence, and all traces of a kind as one: traces narrow no interval.",
        "Against intervals that were made without the readings of their own source:",
        "",
        "| source left out | readings | inside | above |",
        "|---|---|---|---|",
        *(f"| {each.family} | {each.n} | {each.inside} | {each.above} |" for each in sources),
        f"| **all** | {n} | {held_out} ({held_out / n:.1%}) | {above} |",
        "",
        "Outside of their interval:",
        "",
    ]
    out = [row for row in read if not row.inside]
    lines += [f"- `{row.case.id}` ({row.error:+.1%}): {row.case.note or 'not explained'}" for row in out]
    lines += [
        "",
        "Width of `needed` as a share of it, over all cases with at least 8 GiB of live tensors. *Before*: as it was",
        "before adapters over a 4-bit base had replays of their own, and kinds with few readings took the ends of",
        "other families' adapters:",
        "",
    ]
    return lines + widths.by_kind(rows)


def apart(rows: Sequence[tuple[str, Row]]) -> list[str]:
    """Published readings that count in nothing, each with its error and what is not known, as items of a list."""
    found = []
    for what, row in rows:
        where = "inside" if row.inside else "**above**" if row.unsafe else "below"
        sizes = f"{row.case.truth_bytes / GIB:.2f} GiB {row.case.metric}, {row.predicted_bytes / GIB:.2f} predicted"
        found.append(f"- `{row.case.id}`: {sizes} ({row.error:+.1%}, {where}); {what}; {row.case.source}")
    return found


def _left_out(left_out: Sequence[LeftOut]) -> list[str]:
    n = sum(f.n for f in left_out)
    inside, above = sum(f.inside for f in left_out), sum(f.above for f in left_out)
    return [
        "",
        "## Leaving a model family out",
        "",
        "Predictions have no fitted coefficients, so leaving a family out does not change them. What is taken from",
        "data is the width of the interval and the allocator's share. With both made from the other families alone:",
        "",
        "| family left out | cases | inside its interval | above it |",
        "|---|---|---|---|",
        *(f"| {f.family} | {f.n} | {f.inside} | {f.above} |" for f in left_out),
        f"| **all** | {n} | {inside} ({inside / n:.1%}) | {above} |",
    ]


def _halves(halves: Sequence[Half]) -> list[str]:
    return [
        "",
        "## Half of the families against the other half",
        "",
        "Replayed steps with default segments, held against what cannot be returned as the other half of the model",
        "families has it. *By share*: the interval without what follows from the largest block of a step. Widths are",
        "those of the allocator alone, over live tensors.",
        "",
        "| families | steps | above | width, median | by share: above | width, median |",
        "|---|---|---|---|---|---|",
        *(
            f"| {', '.join(h.families)} | {h.n} | {h.above} | {h.width:.1%} | {h.above_share} | {h.width_share:.1%} |"
            for h in halves
        ),
    ]


def _tables() -> list[str]:
    tables = residuals()
    found = ["", "## What the intervals rest on", "", "Truth over predicted `allocated`:", ""]
    found += ["| kind of plan | n | lower | median | upper |", "|---|---|---|---|---|"]
    found += [f"| {k} | {s.n} | {s.low:.4f} | {s.median:.4f} | {s.high:.4f} |" for k, s in tables.allocated.items()]
    found += [
        "",
        "Reserved over allocated, as the allocator sees a plan; *tight*: on the smallest memory on which the step",
        "still runs:",
        "",
    ]
    found += ["| kind of plan | n | median | upper | tight, n | median | upper |", "|---|---|---|---|---|---|---|"]
    for k, s in tables.reserved.items():
        t = tables.tight.get(k)
        found.append(
            f"| {k} | {s.n} | {s.median:.3f} | {s.high:.3f} | "
            + (f"{t.n} | {t.median:.3f} | {t.high:.3f} |" if t else " | | |")
        )
    found += [
        "",
        "What the smallest memory has beyond live tensors and one more block as large as the step's largest, which the",
        "upper end of `needed` rests on where that is lower (default segments):",
        "",
        "| kind of step | n | median | upper |",
        "|---|---|---|---|",
    ]
    found += [f"| {k} | {s.n} | {s.median:.3f} | {s.high:.3f} |" for k, s in tables.beyond.items()]
    found += [
        "",
        "What it has beyond live tensors over that block, plus one, of full steps of FSDP2 that gather twice: both",
        "ends of `needed` rest on it where that is narrower.",
        "",
        "| kind of step | n | lower | median | upper |",
        "|---|---|---|---|---|",
    ]
    return found + [f"| {k} | {s.n} | {s.low:.3f} | {s.median:.3f} | {s.high:.3f} |" for k, s in tables.blocks.items()]


def _outside(readings: Sequence[Reading]) -> list[str]:
    found = ["", "Outside the allocator (context, libraries, communicators), formulas against readings:", ""]
    found += ["| reading | of | predicted MiB | measured MiB | ratio | source |", "|---|---|---|---|---|---|"]
    for kind, what, predicted, measured, source in readings:
        sizes = f"{predicted / MIB:.0f} | {measured / MIB:.0f} | {measured / predicted:.2f}"
        found.append(f"| {what} | {kind} | {sizes} | {source} |")
    return found


def _unpriced(records: Sequence[Unpriced]) -> list[str]:
    found = ["", "## Records that are not priced", ""]
    reasons: dict[str, list[str]] = {}
    for record in records:
        reasons.setdefault(record.reason, []).append(record.id)
    for reason, ids in reasons.items():
        found.append(f"- {reason}: {', '.join(f'`{i}`' for i in ids)}")
    return found
