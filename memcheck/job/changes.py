"""Apply dotted changes to a plan, whether its author used a short or a long form."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.types import TrainingJob
from memcheck.plan.changes import fields, with_changes
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan
from memcheck.plan.types import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def apply(document: Document, changes: Mapping[str, object]) -> tuple[Document, Plan] | None:
    """The document with the values set, and its plan; None when the result is no valid plan."""
    changed = with_changes(document, changes)
    plan, _ = read_plan(changed)
    return None if plan is None else (changed, plan)


def written(document: Document, key: str) -> Any:
    """The value that the plan writes under a dotted key, in whatever form; None if it writes none."""
    value = document.values
    for part in fields(key):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
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
    """Changes of fields as the plan's author would write them.

    Where the plan writes a key out, only its fields are set. Where it writes one word or nothing, the key is written
    anew: as one word if that says all, else with every field that is stated.
    """
    found: dict[str, object] = {}
    for key, value in changes.items():
        parent, _, field = key.rpartition(".")
        here = written(document, parent) if parent in SHORT else None
        if parent not in SHORT or isinstance(here, dict):
            found[key] = value
            continue
        whole = found.get(parent)
        if not isinstance(whole, dict):
            whole = {} if not SHORT[parent] else {SHORT[parent]: here if here is not None else _default(parent, job)}
        found[parent] = {**whole, field: value}
    for key, value in found.items():
        short = SHORT.get(key)
        if short and isinstance(value, dict):
            stated = {name: each for name, each in value.items() if each is not None}
            found[key] = stated[short] if list(stated) == [short] else stated
    return found


def _default(key: str, job: TrainingJob | None) -> object:
    """The word that a key which the plan does not write stands for."""
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
