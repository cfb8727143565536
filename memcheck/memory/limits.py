"""Sizes of plans up to which an estimate takes no more than a moment; beyond them the plan is refused, not walked."""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.job.types import InferenceJob, TrainingJob

PIPELINE = 256
"""Pipeline ranks. Each one is walked: no two of them hold the same number of micro-batches."""
NAMES = 256
"""Names in one list of modules. Each one is compared with every tensor of every unit."""


def refuse_extremes(job: TrainingJob | InferenceJob) -> None:
    """Refuse a job that would take too long to estimate, with more ranks or names than any real plan has.

    Raises:
        UnsupportedError: there are more pipeline ranks, or longer lists of names, than are walked in a moment.
    """
    if job.layout.pipeline > PIPELINE:
        raise UnsupportedError(
            f"pipeline {job.layout.pipeline:,} is above {PIPELINE}, up to which pipeline ranks are estimated",
            f"split the layers over at most {PIPELINE} pipeline ranks",
            "/parallelism/pipeline",
        )
    if isinstance(job, InferenceJob):
        return
    targets = job.lora.target_modules if job.lora is not None else ()
    for what, names, pointer in (
        ("freeze", job.freeze, "/training/freeze"),
        ("lora.target_modules", () if isinstance(targets, str) else targets, "/training/lora/target_modules"),
    ):
        if len(names) > NAMES:
            raise UnsupportedError(
                f"`{what}` has {len(names):,} entries, more than the {NAMES} up to which they are estimated",
                "join neighbouring layers as layers:FIRST-LAST, and name modules without their layer"
                if what == "freeze"
                else "name modules without the path to their layer, or write all-linear",
                pointer,
            )
