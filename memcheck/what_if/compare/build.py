"""Builds the rows of a comparison of plans over GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck import __version__
from memcheck.check import Gate, plan_name
from memcheck.plan.document import Document
from memcheck.record import Record
from memcheck.what_if.compare.types import ComparedPoint, Comparison
from memcheck.what_if.points.evaluate import Evaluator
from memcheck.what_if.points.types import Point


class ComparedPlan(Record):
    """One plan to compare, with the gate of its file."""

    document: Document
    gate: Gate


def compare(subjects: Sequence[ComparedPlan], gpus: Sequence[str] | None) -> Comparison:
    """Every plan on its own GPU and on each of ``gpus``; on ``gpus`` alone when they were named, in their order.

    GPUs with a price in the configuration are among them, unless GPUs were named. Speeds are relative to the first row
    that has one: the first plan on its own GPU, or on the first GPU named.
    """
    from memcheck.what_if.compare.types import CONSUMER, DATA_CENTRE

    rows: list[ComparedPoint] = []
    for subject in subjects:
        evaluator = Evaluator(subject.document, subject.gate)
        written = evaluator.point({})
        own = written.size.gpu if written.size is not None else _written_gpu(subject.document)
        prices = dict(subject.gate.settings.prices)
        usual = dict.fromkeys((own, *DATA_CENTRE, *CONSUMER, *prices))
        names = list(usual if gpus is None else gpus)
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
                    as_written=point is written,
                    point=point,
                    relative_speed=None,
                    price_per_gpu_hour=prices.get(name),
                )
            )
    reference = next((row for row in rows if row.point.step is not None), None)
    if reference is None:
        return Comparison(__version__, tuple(rows), "")
    rows = [row._replace(relative_speed=_relative(row.point, reference.point)) for row in rows]
    return Comparison(__version__, tuple(rows), f"{reference.plan} on {reference.gpu}")


def _relative(point: Point, reference: Point) -> float | None:
    """Tokens per second and GPU over the reference's: jobs of different size compare by what a GPU does."""
    if point.step is None or reference.step is None:
        return None
    return point.step.tokens_per_second_per_gpu / reference.step.tokens_per_second_per_gpu


def _written_gpu(document: Document) -> str:
    """The GPU as the file has it, for plans that cannot be resolved."""
    values = document.values
    hardware = values.get("hardware") if isinstance(values, dict) else None
    gpu = hardware.get("gpu") if isinstance(hardware, dict) else None
    if isinstance(gpu, dict):
        gpu = gpu.get("name")
    return gpu if isinstance(gpu, str) else "as written"


def _by_name(document: Document) -> bool:
    """Whether the plan names its GPU, and states no figures of its own for it."""
    values = document.values
    hardware = values.get("hardware") if isinstance(values, dict) else None
    return isinstance(hardware, dict) and isinstance(hardware.get("gpu"), str)
