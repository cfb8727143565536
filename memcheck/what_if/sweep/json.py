"""The sweep for programs: ``schemas/sweep.schema.json``, version 1. Fields may be added, never removed."""

from __future__ import annotations

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.what_if.points.data import record
from memcheck.what_if.points.types import VERDICTS
from memcheck.what_if.sweep.types import Sweep


def render(sweep: Sweep, screen: Screen | None = None) -> str:
    """The whole document; the screen plays no part. A point is a line."""
    head = dumps(summary(sweep), indent=1).removesuffix("\n}")
    points = ",\n  ".join(dumps({"set": dict(point.set), **record(point)}) for point in sweep.points)
    return f'{head},\n "points": [\n  {points}\n ]\n}}\n'


def summary(sweep: Sweep) -> dict[str, object]:
    """The JSON object of a sweep without its points."""
    return {
        "sweep": 1,
        "memcheck": sweep.version,
        "plan": sweep.plan,
        "path": sweep.path,
        "axes": [{"key": each.key, "values": list(each.values)} for each in sweep.axes],
        "summary": {verdict: sweep.count(verdict) for verdict in VERDICTS},
    }
