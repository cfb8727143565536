"""A comparison: one row per plan and GPU."""

from __future__ import annotations

from memcheck.memory.fit import FITS, UNCERTAIN
from memcheck.record import Record
from memcheck.what_if.points.types import Point

PER_HOUR, TOKENS = 3600, 1_000_000

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
    price_per_gpu_hour: float | None = None
    """The configured price of one GPU for an hour; None where the configuration has no price for the GPU."""

    @property
    def price_per_million_tokens(self) -> float | None:
        """The price of a million tokens on all GPUs; None without a price or a time."""
        step = self.point.step
        cost = None if step is None else per_million_tokens(self.price_per_gpu_hour, step.tokens_per_second_per_gpu)
        return None if cost is None else float(f"{cost:.6g}")


def per_million_tokens(price_per_gpu_hour: float | None, tokens_per_second_per_gpu: float) -> float | None:
    """What a million tokens cost: the price of an hour of all GPUs times the hours that the tokens take."""
    if price_per_gpu_hour is None or not tokens_per_second_per_gpu:
        return None
    return price_per_gpu_hour / PER_HOUR / tokens_per_second_per_gpu * TOKENS


class Comparison(Record):
    """All rows, plan by plan in the order of the command line."""

    version: str
    rows: tuple[ComparedPoint, ...]
    reference: str
    """What speeds are relative to, in words."""

    @property
    def priced(self) -> bool:
        """Whether any row has a price, so that tables show prices."""
        return any(row.price_per_million_tokens is not None for row in self.rows)

    @property
    def plans(self) -> int:
        """Number of plans."""
        return len({(row.path, row.document) for row in self.rows})

    @property
    def failing_first(self) -> tuple[ComparedPoint, ...]:
        """All rows as people read them. Of each plan, GPUs on which it fails come first, then uncertain ones.

        Plans keep their rows together, in the same order: by the plan's own GPU, or else by the worst of its GPUs.
        """
        plans: dict[tuple[str, int], list[ComparedPoint]] = {}
        for row in self.rows:
            plans.setdefault((row.path, row.document), []).append(row)
        groups = [sorted(rows, key=_rank) for rows in plans.values()]
        groups.sort(key=lambda rows: min(map(_rank, [row for row in rows if row.as_written] or rows)))
        return tuple(row for rows in groups for row in rows)


def _rank(row: ComparedPoint) -> int:
    """0: the plan fails there, 1: uncertain, 2: it fits."""
    return {UNCERTAIN: 1, FITS: 2}.get(row.point.verdict, 0)
