"""Keys that a change leaves without a reader go back to what says nothing, so that no remedy brings a finding."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.changes import written
from memcheck.job.types import Layout, TrainingJob
from memcheck.plan.document import Document
from memcheck.rules.deviations import NEUTRAL
from memcheck.rules.mem416_setting_without_effect import CASES

SECTION, STEPS = "parallelism.", "training.gradient_accumulation_steps"


def unread(document: Document, job: TrainingJob, changes: Mapping[str, object]) -> dict[str, object]:
    """The neutral value of each key that says something, and that the changed plan would not read."""
    lacks = job.framework.lacks
    telling = [
        key
        for key, neutral in NEUTRAL.items()
        if key not in lacks and changes.get(key, written(document, key)) not in (None, neutral)
    ]
    if not telling:
        return {}
    changed = _changed(job, changes)
    return {key: NEUTRAL[key] for key in telling if CASES[key](changed) and (key in changes or not CASES[key](job))}


def _changed(job: TrainingJob, changes: Mapping[str, object]) -> TrainingJob:
    """The job with the changes of its layout, as far as they decide whether a key is read."""
    fields = {key.removeprefix(SECTION): value for key, value in changes.items() if key.startswith(SECTION)}
    known = {name: value for name, value in fields.items() if name in Layout._fields and value != "auto"}
    layout: Layout = job.layout._replace(**known)  # type: ignore[arg-type]
    for name in ("nodes", "gpus_per_node"):
        layout = layout._replace(**{name: changes.get(f"hardware.{name}", getattr(layout, name))})  # type: ignore[arg-type]
    data = max(1, layout.world_size // (layout.tensor * layout.context * layout.pipeline))
    stated = "shard_group" in known or ("shard_group" not in fields and job.layout.zero_stage and "data" not in fields)
    group = layout.shard_group if stated and layout.shard_group > 1 else data * layout.context
    layout = layout._replace(data=data, shard_group=group if layout.zero_stage else 1)
    steps = changes.get(STEPS, job.gradient_accumulation_steps)
    return job._replace(layout=layout, gradient_accumulation_steps=steps)  # type: ignore[arg-type]
