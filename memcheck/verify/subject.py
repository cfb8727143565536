"""The plan to verify: read, resolved, estimated, and with the configuration that transformers builds it from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from memcheck.accounts.estimate import Estimate
from memcheck.catalog.names import Gpu, find_model, read_config
from memcheck.configs.documents import load_one
from memcheck.errors import UsageError
from memcheck.families.multimodal import language_model, switched_off, thinker_of
from memcheck.families.registry import HEARING, LAYER_COUNTS, TOWERS, merged_config, part_of, with_overrides
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import Assumption, InferenceJob, Overhead, TrainingJob
from memcheck.judge import Gate, check_document
from memcheck.memory.overhead import library_terms
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan, with_changes
from memcheck.plan.types import ModelSpec, Plan
from memcheck.record import Record
from memcheck.rules.result import PlanResult

TORCH_VERSION = "training.torch_version"


class Subject(Record):
    """One plan with everything that is compared with an observation."""

    path: str
    name: str
    document: Document
    """The plan with the changes of the command line."""
    plan: Plan
    job: TrainingJob | InferenceJob
    gpu: Gpu
    overhead: Overhead
    assumptions: tuple[Assumption, ...]
    estimate: Estimate

    @property
    def base_dir(self) -> str:
        """Where the plan's relative paths start."""
        return os.path.dirname(self.document.path)


def load_document(path: str, changes: Mapping[str, object], number: int | None = None) -> Document:
    """The one plan of a file, or its ``number``-th.

    Raises:
        UsageError: no file, unreadable, or several plans and no number.
    """
    _, _, document = load_one(path, number, "verify runs its step")
    return changed(document, changes)


def changed(document: Document, changes: Mapping[str, object]) -> Document:
    """The document with other values; None takes a key away."""
    document = with_changes(document, {k: v for k, v in changes.items() if v is not None})
    values = document.values
    for key in (k for k, v in changes.items() if v is None):
        values = _without(values, key.split("."))
    return document._replace(values=values)


def with_torch(document: Document, version: str | None) -> Document:
    """The plan on a version of PyTorch; what it says itself when None."""
    return changed(document, {TORCH_VERSION: version}) if version is not None else document


def _without(values: object, keys: list[str]) -> object:
    if not isinstance(values, dict) or keys[0] not in values:
        return values
    if len(keys) == 1:
        return {k: v for k, v in values.items() if k != keys[0]}
    return {**values, keys[0]: _without(values[keys[0]], keys[1:])}


def with_layers(document: Document, count: int) -> Document:
    """The plan's language model with fewer layers, in the key that its family has for them.

    Raises:
        MemcheckError: the plan names no model that can be read.
    """
    values = document.values
    stated = values.get("model") if isinstance(values, dict) else None
    model = {"name": stated} if isinstance(stated, str) else stated
    plan, _ = read_plan(document)
    if plan is None or not isinstance(model, dict):
        return document  # the checks of the plan report what is wrong with it
    config = hugging_face_config(plan.model, os.path.dirname(document.path))
    own = next((k for k in LAYER_COUNTS if k in config), None)
    text = config.get("text_config") if own is None else None
    key = own or next((k for k in LAYER_COUNTS if isinstance(text, dict) and k in text), LAYER_COUNTS[0])
    change: dict[str, Any] = {"text_config": {key: count}} if isinstance(text, dict) else {key: count}
    if "architecture" in model:
        return changed(document, {"model.architecture": with_overrides(model["architecture"], change)})
    return changed(document, {"model": {**model, "overrides": merged_config(model.get("overrides") or {}, change)}})


def load_subject(document: Document) -> Subject | PlanResult:
    """The plan with its estimate; the result with its findings when it cannot be estimated."""
    result = check_document(document, Gate(inventory=True))
    plan, _ = read_plan(document)
    if result.estimate is None or plan is None:
        return result
    found = resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(document.path))
    return Subject(
        path=document.path,
        name=result.name,
        document=document,
        plan=plan,
        job=found.job,
        gpu=found.gpu,
        overhead=found.overhead,
        assumptions=found.assumptions,
        estimate=result.estimate,
    )


def workspaces(subject: Subject) -> int:
    """BLAS workspaces come from torch's allocator, so that its counters include them."""
    if not isinstance(subject.job, TrainingJob):
        return 0
    return sum(term.bytes for term in library_terms(subject.job, subject.gpu) if term.name == "BLAS workspaces")


def hugging_face_config(model: ModelSpec, base_dir: str) -> dict[str, Any]:
    """What transformers builds the plan's model from: its configuration, overrides applied; the language model alone
    where that is trained without its tower.

    Raises:
        MemcheckError: unknown name, unreadable config.json.
        UsageError: the plan only gives a parameter count.
    """
    overrides = model.overrides or {}
    if model.architecture is not None:
        return _trained(part_of(with_overrides(model.architecture, overrides), model.part))
    if model.config is not None:
        config = part_of(read_config(model.config, base_dir), model.part)
        return _trained(with_overrides(config, overrides))
    if model.name is not None:
        config = part_of(find_model(model.name).config, model.part)
        return _trained(with_overrides(config, overrides))
    raise UsageError("model.rough says too little to build a model", "name a model, a config.json or an architecture")


def _trained(config: Mapping[str, Any]) -> dict[str, Any]:
    """The whole configuration of a model whose tower runs, or its language model's."""
    config = thinker_of(config)
    kind = str(config.get("model_type"))
    pictured = kind in TOWERS and kind not in HEARING and not switched_off(config)
    return dict(config if pictured else language_model(config))
