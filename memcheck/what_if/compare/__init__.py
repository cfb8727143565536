"""Compares plans over GPUs: one row per plan and GPU."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck import __version__
from memcheck.judge import Gate, plan_name
from memcheck.memory.fit import FITS, UNCERTAIN
from memcheck.plan.places import Document
from memcheck.record import Record
from memcheck.what_if.points import Evaluator, Point

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
"""GPUs that are compared unless others are named: those that data centres rent out for training."""


CONSUMER = ("rtx-3090", "rtx-4090", "rtx-5090", "rtx-6000-ada", "rtx-pro-6000")
"""Cards of workstations, which are compared as well."""


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
    """Return what a million tokens cost: the price of an hour of all GPUs times the hours that the tokens take."""
    if price_per_gpu_hour is None or not tokens_per_second_per_gpu:
        return None
    return price_per_gpu_hour / PER_HOUR / tokens_per_second_per_gpu * TOKENS


class GpuComparison(Record):
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


class ComparedPlan(Record):
    """One plan to compare, with the gate of its file."""

    document: Document
    gate: Gate
    only: str = ""
    """The GPU that the document was read for; empty: it is the same for each."""


def compare(subjects: Sequence[ComparedPlan], gpus: Sequence[str] | None) -> GpuComparison:
    """Return every plan on its own GPU and on each of ``gpus``; on ``gpus`` alone when they were named, in their order.

    GPUs with a price in the configuration are among them, unless GPUs were named. Speeds are relative to the first row
    that has one: the first plan on its own GPU, or on the first GPU named.
    """
    rows: list[ComparedPoint] = []
    for subject in subjects:
        evaluator = Evaluator(subject.document, subject.gate)
        written = evaluator.point({})
        own = written.size.gpu if written.size is not None else _written_gpu(subject.document)
        prices = dict(subject.gate.settings.prices)
        usual = dict.fromkeys((own, *DATA_CENTRE, *CONSUMER, *prices))
        names = [subject.only] if subject.only else list(usual if gpus is None else gpus)
        for name in names:
            point = written if name == own and _by_name(subject.document) else evaluator.point({"hardware.gpu": name})
            if name == own and gpus is None:
                point = written
            rows.append(
                ComparedPoint(
                    plan=plan_name(subject.document),
                    path=subject.document.path,
                    document=subject.document.index,
                    gpu=name,
                    as_written=point is written and not subject.only,
                    point=point,
                    relative_speed=None,
                    price_per_gpu_hour=prices.get(name),
                )
            )
    reference = next((row for row in rows if row.point.step is not None), None)
    if reference is None:
        return GpuComparison(__version__, tuple(rows), "")
    rows = [row._replace(relative_speed=_relative(row.point, reference.point)) for row in rows]
    return GpuComparison(__version__, tuple(rows), f"{reference.plan} on {reference.gpu}")


def _relative(point: Point, reference: Point) -> float | None:
    """Return tokens per second and GPU over the reference's: jobs of different size compare by what a GPU does."""
    if point.step is None or reference.step is None:
        return None
    return point.step.tokens_per_second_per_gpu / reference.step.tokens_per_second_per_gpu


def _written_gpu(document: Document) -> str:
    """Return the GPU as the file has it, for plans that cannot be resolved."""
    values = document.values
    hardware = values.get("hardware") if isinstance(values, dict) else None
    gpu = hardware.get("gpu") if isinstance(hardware, dict) else None
    if isinstance(gpu, dict):
        gpu = gpu.get("name")
    return gpu if isinstance(gpu, str) else "as written"


def _by_name(document: Document) -> bool:
    """Say whether the plan names its GPU, and states no figures of its own for it."""
    values = document.values
    hardware = values.get("hardware") if isinstance(values, dict) else None
    return isinstance(hardware, dict) and isinstance(hardware.get("gpu"), str)
