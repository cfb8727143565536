"""A comparison: one row per plan and GPU."""

from __future__ import annotations

from memcheck.record import Record
from memcheck.what_if.points.types import Point

DATA_CENTRE = (
    "a100-40gb",
    "a100-80gb",
    "l40s",
    "h100-80gb",
    "h100-nvl-94gb",
    "h200",
    "b200",
    "gb200",
    "b300",
    "mi300x",
    "mi325x",
    "mi355x",
)
"""What is compared unless GPUs are named: what data centres rent out for training, by maker and age."""


CONSUMER = ("rtx-3090", "rtx-4090", "rtx-5090", "rtx-6000-ada", "rtx-pro-6000")
"""Cards of workstations, which are compared, too."""


class ComparedPoint(Record):
    """One plan on one GPU."""

    plan: str
    path: str
    document: int
    gpu: str
    as_written: bool
    """The GPU is the plan's own."""
    point: Point
    relative_speed: float | None
    """Tokens per second and GPU over those of the reference row; None without a time."""


class Comparison(Record):
    """All rows, plan by plan in the order of the command line."""

    version: str
    rows: tuple[ComparedPoint, ...]
    reference: str
    """What speeds are relative to, in words."""

    @property
    def plans(self) -> int:
        """Number of plans."""
        return len({(row.path, row.document) for row in self.rows})
