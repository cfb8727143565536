"""Two plots as SVG, drawn by hand. Greys and hues are chosen to be legible on white and on black."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from benchmarks.score import Row

GIB = 2**30
INK, RULE = "#7d8590", "#7d859055"
HUES = ("#2f81f7", "#d4721f", "#2da44e", "#a371f7", "#cf3a6f", "#0f9bab", "#a48200", "#8a6d5b", "#5b7fa6", "#b0568c")
FONT = 'font-family="ui-sans-serif, system-ui, sans-serif"'


def predicted_against_truth(rows: Sequence[Row]) -> str:
    """Both in GiB, on logarithmic axes."""
    width, height, left, top, side = 860, 620, 64, 20, 540
    low, high = _decades([v for r in rows for v in (r.case.truth_bytes / GIB, r.predicted_bytes / GIB)])

    def x(value: float) -> float:
        return left + side * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        return top + side - side * (math.log10(value) - low) / (high - low)

    parts = [_open(width, height, "Predicted against true peak memory, GiB")]
    for tick in _ticks(low, high):
        parts.append(
            f'<path d="M{x(tick):.1f} {top}V{top + side}M{left} {y(tick):.1f}H{left + side}" stroke="{RULE}"/>'
        )
        parts.append(_text(x(tick), top + side + 18, f"{tick:g}", "middle"))
        parts.append(_text(left - 8, y(tick) + 4, f"{tick:g}", "end"))
    first, last = 10**low, 10**high
    parts.append(f'<path d="M{x(first):.1f} {y(first):.1f}L{x(last):.1f} {y(last):.1f}" stroke="{INK}"/>')
    for factor in (0.9, 1.1):
        a, b = (first / min(1, factor), last / max(1, factor))
        shape = f"M{x(a):.1f} {y(a * factor):.1f}L{x(b):.1f} {y(b * factor):.1f}"
        parts.append(f'<path d="{shape}" stroke="{INK}" stroke-dasharray="3 4"/>')
    groups = _groups(rows)
    for hue, (name, members) in zip(_hues(len(groups)), groups.items(), strict=True):
        dots = ""
        for row in members:
            truth, predicted = row.case.truth_bytes / GIB, row.predicted_bytes / GIB
            dots += _dot(x(truth), y(predicted), f"{row.case.id}: {truth:.2f} GiB, predicted {predicted:.2f}")
        parts.append(f'<g fill="{hue}" fill-opacity="0.6" aria-label="{escape(name)}">{dots}</g>')
    parts.append(_text(left + side / 2, top + side + 42, "true peak, GiB", "middle"))
    parts.append(f'<g transform="translate(18 {top + side / 2}) rotate(-90)">')
    parts.append(_text(0, 0, "predicted, GiB", "middle") + "</g>")
    parts.append(_legend(left + side + 24, top + 10, {k: len(v) for k, v in groups.items()}))
    parts.append(_text(left + side + 24, top + side - 4, "dashed: 10 % off"))
    return "\n".join([*parts, "</svg>", ""])


def errors_by_group(groups: dict[str, list[Row]]) -> str:
    """One strip per group: every case, the median and the 95th percentile of the absolute error."""
    left, right, top, step = 190, 200, 34, 38
    width, height = 860, top + step * len(groups) + 46
    span = width - left - right
    limits = (-0.3, -0.1, -0.03, -0.01, -0.003, 0.0, 0.003, 0.01, 0.03, 0.1, 0.3)

    def x(error: float) -> float:
        # linear up to 0.1 %, logarithmic beyond: most traced cases would otherwise share one pixel
        size = math.log10(max(abs(error), 0.001) / 0.001) / math.log10(0.5 / 0.001)
        return left + span / 2 + math.copysign(min(1.0, size), error) * span / 2 * (abs(error) > 0.001)

    parts = [_open(width, height, "Error per group")]
    bottom = top + step * len(groups)
    for limit in limits:
        stroke = INK if limit == 0 else RULE
        parts.append(f'<path d="M{x(limit):.1f} {top - 8}V{bottom}" stroke="{stroke}"/>')
        parts.append(_text(x(limit), bottom + 18, f"{limit:+.1%}".replace(".0%", "%") if limit else "0", "middle", 11))
    parts.append(_text(left + span / 2, bottom + 38, "prediction over truth, minus one", "middle"))
    parts.append(_text(left + span + 16, top - 14, "median, p95 of |error|"))
    for index, (hue, (name, rows)) in enumerate(zip(_hues(len(groups)), groups.items(), strict=True)):
        middle = top + step * (index + 0.5)
        parts.append(_text(left - 12, middle + 4, name, "end"))
        dots = "".join(
            _dot(x(r.error), middle + _jitter(i), f"{r.case.id}: {r.error:+.2%}") for i, r in enumerate(rows)
        )
        parts.append(f'<g fill="{hue}" fill-opacity="0.55">{dots}</g>')
        sizes = sorted(abs(r.error) for r in rows)
        middle_error, p95 = sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, int(len(sizes) * 0.95))]
        parts.append(_text(left + span + 16, middle + 4, f"{middle_error:.2%}, {p95:.2%}  (n = {len(rows)})"))
    return "\n".join([*parts, "</svg>", ""])


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.case.group, []).append(row)
    return found


def _hues(n: int) -> list[str]:
    return [HUES[i % len(HUES)] for i in range(n)]


def _jitter(i: int) -> float:
    """Spread points of one strip over its height, the same way every time."""
    return ((i * 7) % 11 - 5) * 1.9


def _decades(values: Sequence[float]) -> tuple[float, float]:
    return math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05


def _ticks(low: float, high: float) -> list[float]:
    steps = (1, 2, 5)
    found = [s * 10.0**d for d in range(math.floor(low), math.ceil(high) + 1) for s in steps]
    return [v for v in found if low <= math.log10(v) <= high]


def _open(width: int, height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" fill="none" {FONT}><title>{escape(title)}</title>'
    )


def _text(x: float, y: float, content: str, anchor: str = "start", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}" font-size="{size}">{escape(content)}</text>'
    )


def _dot(x: float, y: float, title: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"><title>{escape(title)}</title></circle>'


def _legend(x: float, y: float, counts: dict[str, int]) -> str:
    rows = []
    for i, (hue, (name, n)) in enumerate(zip(_hues(len(counts)), counts.items(), strict=True)):
        rows.append(f'<circle cx="{x + 5}" cy="{y + i * 22}" r="5" fill="{hue}"/>')
        rows.append(_text(x + 18, y + i * 22 + 4, f"{name} ({n})"))
    return "".join(rows)
