"""Which assumption would explain a reading: the plan is estimated again with each one changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memcheck.errors import MemcheckError
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.record import Record
from memcheck.report.details import SHORT_FORMS
from memcheck.verify.observed.judge import Judgement, predicted
from memcheck.verify.subject import Subject, changed, load_subject

WORTH_NAMING = 0.25
"""Share of the gap that a change has to close."""


class Explanation(Record):
    """A change and what it would lead to."""

    key: str
    value: Any
    stated: Any
    """What the plan says instead; None where it says nothing, so that a default was assumed."""
    predicted_bytes: int
    remaining: int
    """Read minus predicted, after the change."""
    changes: dict[str, Any]


def explanations(subject: Subject, judgement: Judgement) -> list[Explanation]:
    """Single changes that close at least a quarter of the gap: the closest first, what is not stated before what is."""
    found = []
    seen: set[int] = set()
    for key, value, changes in candidates(subject.job):
        said = _price(subject, changes, judgement.reading.metric)
        if said is None or said in seen:
            continue
        remaining = judgement.reading.bytes - said
        if abs(remaining) <= (1 - WORTH_NAMING) * abs(judgement.gap):
            seen.add(said)
            found.append(
                Explanation(
                    key=key,
                    value=value,
                    stated=stated(subject, key),
                    predicted_bytes=said,
                    remaining=remaining,
                    changes=changes,
                )
            )
    close = max(abs(judgement.reading.bytes) // 50, 1)
    found.sort(key=lambda e: (abs(e.remaining) // close, e.stated is not None, abs(e.remaining)))
    return found


def stated(subject: Subject, key: str) -> Any:
    """What the plan itself says of a key; a word may stand for the mapping that holds it (``optimizer: adamw``)."""
    value = subject.document.values
    for part in key.split("."):
        if not isinstance(value, dict):
            return value if part in SHORT_FORMS else None
        value = value.get(part)
    return value


def _price(subject: Subject, changes: dict[str, Any], metric: str) -> int | None:
    try:
        other = load_subject(changed(subject.document, changes))
    except MemcheckError:
        return None
    return predicted(other, other.estimate, metric) if isinstance(other, Subject) else None


Candidate = tuple[str, Any, dict[str, Any]]


def candidates(job: TrainingJob | InferenceJob) -> Iterator[Candidate]:
    """``(key, value, changes)`` for everything that is worth trying alone."""
    if isinstance(job, InferenceJob):
        for dtype in ("fp32", "bf16", "fp8", "int8"):
            yield "inference.kv_cache", dtype, {"inference.kv_cache": dtype}
            yield "inference.weights", dtype, {"inference.weights": dtype}
        return
    yield from _recipe(job)
    yield from _loss(job)
    yield from _layout(job)
    yield from _batch(job)


def _one(key: str, value: Any) -> Candidate:
    return key, value, {key: value}


def _recipe(job: TrainingJob) -> Iterator[Candidate]:
    framework = job.framework
    for recipe in framework.recipes:
        if recipe != job.recipe.recipe:
            yield "training.precision.recipe", recipe, {"training.precision": recipe}
    for name in ("fp32", "bf16"):
        precision = {"recipe": job.recipe.recipe, "reduce": name}
        yield "training.precision.reduce", name, {"training.precision": precision}
    for implementation in ("foreach", "fused", "for-loop"):
        if implementation != job.optimizer.implementation:
            changed = {**job.optimizer._asdict(), "implementation": implementation}
            yield "training.optimizer.implementation", implementation, {"training.optimizer": changed}
    for mode in framework.recompute:
        if mode != job.checkpointing.mode:
            yield "training.activation_checkpointing.mode", mode, {"training.activation_checkpointing": mode}
    for attention in framework.attentions:
        if attention != job.attention:
            yield _one("training.attention", attention)
    if job.lora is not None:
        for dtype in ("fp32", "bf16"):
            changed = {**job.lora._asdict(), "dtype": dtype}
            if isinstance(job.lora.target_modules, tuple):
                changed["target_modules"] = list(job.lora.target_modules)
            yield "training.lora.dtype", dtype, {"training.lora": changed}
    yield _one("training.compile", not job.compile)
    yield _one("training.expandable_segments", not job.expandable_segments)


def _loss(job: TrainingJob) -> Iterator[Candidate]:
    stated = job.loss.stated()
    if job.loss.kind != "chunked":
        stated.pop("chunks")
    yield (
        "training.loss.keep_logits",
        not job.loss.keep_logits,
        {"training.loss": {**stated, "keep_logits": not job.loss.keep_logits}},
    )
    yield "training.loss.upcast", not job.loss.upcast, {"training.loss": {**stated, "upcast": not job.loss.upcast}}
    for kind in job.framework.losses:
        if kind != job.loss.kind:
            yield "training.loss.kind", kind, {"training.loss": kind}


def _layout(job: TrainingJob) -> Iterator[Candidate]:
    layout = job.layout
    if layout.data * layout.context > 1:
        for stage in job.framework.zero_stages:
            if stage != layout.zero_stage:
                changes = {"parallelism.zero_stage": stage, "parallelism.shard_group": "auto"}
                yield "parallelism.zero_stage", stage, changes
        yield _one("parallelism.gradient_sync", "last" if layout.gradient_sync == "every" else "every")
    if layout.zero_stage == 3:
        yield _one("parallelism.reshard_after_forward", not layout.reshard_after_forward)
    if layout.zero_stage == 0 and layout.data > 1:
        yield _one("parallelism.gradient_as_bucket_view", not layout.gradient_as_bucket_view)
    if layout.tensor > 1:
        yield _one("parallelism.sequence", not layout.sequence)
    if layout.expert > 1:
        for imbalance in (1.25, 1.5, 2.0):
            yield _one("training.expert_imbalance", imbalance)


def _batch(job: TrainingJob) -> Iterator[Candidate]:
    steps = 1 if job.gradient_accumulation_steps > 1 else 2
    yield (
        "training.gradient_accumulation_steps",
        steps,
        {
            "training.gradient_accumulation_steps": steps,
            "training.global_batch_size": None,
        },
    )
    for size in (job.micro_batch_size * 2, job.micro_batch_size // 2):
        if size:
            yield _one("training.micro_batch_size", size)
