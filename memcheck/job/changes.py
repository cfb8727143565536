"""Apply dotted changes to a plan, whether its author used a short or a long form."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.types import TrainingJob
from memcheck.plan.places import Document
from memcheck.plan.read import fields, read_plan, with_changes
from memcheck.plan.types import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def apply(document: Document, changes: Mapping[str, object]) -> tuple[Document, Plan] | None:
    """Return the document with the values set, and the plan in it; None if the result is no valid plan."""
    changed = with_changes(document, changes)
    plan, _ = read_plan(changed)
    return None if plan is None else (changed, plan)


def written(document: Document, key: str) -> Any:
    """Return the value that the plan writes under a dotted key, a short form included; None if it writes none."""
    value = document.values
    for field in fields(key):
        if not isinstance(value, dict):
            return None
        value = value.get(field)
    return value


SHORT = {
    "training.optimizer": "name",
    "training.loss": "kind",
    "training.activation_checkpointing": "mode",
    "training.precision": "recipe",
    "training.offload": "",
    "training.kernels": "",
    "training.initialization": "place",
    "training.checkpoint": "state_dict",
    "hardware.gpu": "name",
}
"""Keys with fields, and the field that the key stands for when it is written as one word."""


def spelled(document: Document, changes: Mapping[str, object], job: TrainingJob | None) -> dict[str, object]:
    """Return changes of fields as the plan's author would write them: new values by dotted key.

    ``changes``: values by dotted path of a field, such as ``training.loss.chunks``. Some keys may be written as one
    word (``loss: chunked``) or as a mapping. If the plan has a mapping, only the field is set. If it has one word or
    nothing, the key is written again: as one word if that is enough, else as a mapping with all stated fields.
    """
    spelling: dict[str, object] = {}
    for key, value in changes.items():
        parent, _, field = key.rpartition(".")
        in_plan = written(document, parent) if parent in SHORT else None
        if parent not in SHORT or isinstance(in_plan, dict):
            spelling[key] = value
            continue
        fields_of_key: dict[str, object] = {}
        changed_before = spelling.get(parent)
        if isinstance(changed_before, dict):
            fields_of_key = changed_before
        elif SHORT[parent]:
            fields_of_key[SHORT[parent]] = in_plan if in_plan is not None else _default(parent, job)
        spelling[parent] = {**fields_of_key, field: value}
    for key, value in spelling.items():
        short = SHORT.get(key)
        if short and isinstance(value, dict):
            stated = {name: field_value for name, field_value in value.items() if field_value is not None}
            spelling[key] = stated[short] if list(stated) == [short] else stated
    return spelling


def _default(key: str, job: TrainingJob | None) -> object:
    """Return the value of a key that may be one word, if the plan does not write it: what the ``job`` was given."""
    if job is None:
        return None
    return {
        "training.optimizer": job.optimizer.name,
        "training.loss": job.loss.kind,
        "training.activation_checkpointing": job.checkpointing.mode,
        "training.precision": job.recipe.recipe,
        "training.initialization": job.initialization.place,
        "training.checkpoint": job.checkpoint.state_dict,
    }.get(key)
