"""From a resolved plan to a framework's config."""

from __future__ import annotations

from memcheck.catalog.models import find_model
from memcheck.catalog.names import UnknownNameError
from memcheck.configs.formats import FORMATS, Format
from memcheck.configs.request import Export
from memcheck.configs.types import Notice, Written
from memcheck.job.resolve import Resolved
from memcheck.job.types import TrainingJob
from memcheck.plan.types import Plan


def export_plan(plan: Plan, resolved: Resolved, format: str, path: str) -> Written:
    """The config of one format.

    Raises:
        TypeError: a plan for inference, which no framework here trains, or a format that is only read.
    """
    job = resolved.job
    if not isinstance(job, TrainingJob):
        raise TypeError
    kind = FORMATS[format]
    if kind.write is None:
        raise TypeError
    return kind.write(Export(job=job, plan=path, model=_catalogued(plan), notices=_foreign(job, kind)))


def _foreign(job: TrainingJob, kind: Format) -> tuple[Notice, ...]:
    """A plan that is priced for another framework than the one that runs it."""
    if job.framework.name in kind.frameworks:
        return ()
    title = job.framework.title
    message = f"the plan is priced for {title}; run from {kind.title} it takes another amount of memory"
    help = f"check it with training.framework: {kind.frameworks[0]}"
    return (Notice("lost", "training.framework", f"{message}: {help}"),)


def _catalogued(plan: Plan) -> str:
    """The catalog's own name of the plan's model; empty for anything that differs from the catalog."""
    if plan.model.name is None or plan.model.overrides:
        return ""
    try:
        return find_model(plan.model.name).name
    except UnknownNameError:
        return ""
