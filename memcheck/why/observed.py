"""``memcheck verify PLAN --observed``: compares a figure, a log or a snapshot of a run with the estimate.

Where they differ, the plan is estimated again with each assumption changed, to find the one that explains the figure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from memcheck import __version__
from memcheck.accounts.estimate import Estimate
from memcheck.edge.json_text import dumps
from memcheck.edge.opener import open_file, read_start
from memcheck.edge.screen import Screen, gib, value
from memcheck.errors import MemcheckError, UsageError
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.memory.allocator import allocator_group, look_up, residuals
from memcheck.memory.interval import error_group
from memcheck.record import Record
from memcheck.report import text
from memcheck.report.story import PlanHead, Prose
from memcheck.report.story.blocks import Block, Fact, Facts, Item
from memcheck.report.story.remedies import SHORT_FORMS
from memcheck.verify.compare import TOLERANCE
from memcheck.verify.subject import Subject, changed, load_subject, workspaces
from memcheck.why.readings import MemoryReading, parse_size, read_log, read_snapshot
from memcheck.why.snapshot_file import snapshot_kind


class Judgement(Record):
    """One reading compared with what was predicted for it."""

    reading: MemoryReading
    predicted_bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def consistent(self) -> bool:
        """Within what predictions of this kind were seen to be off by."""
        if self.reading.at_least:
            return self.reading.bytes <= self.high_bytes
        return self.low_bytes <= self.reading.bytes <= self.high_bytes

    @property
    def gap(self) -> int:
        """Read minus predicted."""
        return self.reading.bytes - self.predicted_bytes


def predicted(subject: Subject, estimate: Estimate, metric: str) -> int:
    """The quantity that a metric reads. A figure without a metric is taken for device memory."""
    if metric == "allocated":
        return estimate.allocated_bytes + workspaces(subject)
    return estimate.reserved_bytes if metric == "reserved" else estimate.device_bytes


def judge(subject: Subject, reading: MemoryReading) -> Judgement:
    """Compare a reading with the prediction and its interval."""
    estimate = subject.estimate
    low, high = min(estimate.interval_bytes[0], estimate.allocated_bytes), estimate.interval_bytes[1]
    said = predicted(subject, estimate, reading.metric)
    tables = residuals()
    _, own = look_up(tables.allocated, error_group(subject.job))
    if reading.metric == "allocated":
        high = min(high, int(estimate.allocated_bytes * max(1.0, own.high)) + workspaces(subject))
    elif reading.metric == "reserved":
        _, kept = look_up(tables.reserved, allocator_group(subject.job))
        worst = next(rank for rank in estimate.ranks if rank.pipeline_rank == estimate.pipeline_rank)
        pools = int(estimate.allocated_bytes * max(1.0, own.high)) + worst.pools.apart
        high = min(high, int(pools * kept.high) + workspaces(subject))
    return Judgement(reading=reading, predicted_bytes=said, low_bytes=min(low, said), high_bytes=max(high, said))


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
    for key, new_value, changes in candidates(subject.job):
        said = _price(subject, changes, judgement.reading.metric)
        if said is None or said in seen:
            continue
        remaining = judgement.reading.bytes - said
        if abs(remaining) <= (1 - WORTH_NAMING) * abs(judgement.gap):
            seen.add(said)
            found.append(
                Explanation(
                    key=key,
                    value=new_value,
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
    for recipe in framework.precisions.recipes:
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
    for kind in job.framework.losses.kinds:
        if kind != job.loss.kind:
            yield "training.loss.kind", kind, {"training.loss": kind}


def _layout(job: TrainingJob) -> Iterator[Candidate]:
    layout = job.layout
    if layout.data * layout.context > 1:
        for stage in job.framework.parallelism.zero_stages:
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


LARGEST_LOG = 256 * 2**20
SHOWN = 5
"""Explanations that people see; programs get all."""

Judged = tuple[Judgement, list[Explanation]]


def answer(subject: Subject, observed: str, form: str, screen: Screen) -> tuple[str, bool]:
    """The text to print, and whether everything that was read is consistent with the estimate.

    Raises:
        UsageError: nothing in ``observed`` is a figure of memory.
    """
    found: list[Judged] = []
    for reading in readings(observed):
        judgement = judge(subject, reading)
        off = not judgement.consistent or abs(judgement.gap) > TOLERANCE * judgement.predicted_bytes
        above = judgement.gap > 0 or not reading.at_least
        found.append((judgement, explanations(subject, judgement) if off and above else []))
    consistent = all(judgement.consistent for judgement, _ in found)
    if form == "json":
        return _json(subject, found, consistent), consistent
    return _text(subject, found, screen), consistent


def readings(observed: str) -> list[MemoryReading]:
    """What a size, a file or a log line says.

    Raises:
        UsageError: none of them.
    """
    size = parse_size(observed)
    if size is not None:
        return [size]
    if os.path.isfile(observed):
        try:
            is_snapshot = snapshot_kind(read_start(observed, 4096)) is not None
            found = read_snapshot(observed) if is_snapshot else _log_file(observed)
        except OSError as error:
            raise UsageError(f"cannot read {observed}: {error.strerror}") from error
    else:
        found = read_log(observed, "the command line")
    if not found:
        raise UsageError(
            f"no memory figure in {observed[:80]!r}",
            "give a size (61.3GiB, reserved=61.3GiB), a log of torchtitan, Megatron, DeepSpeed, Axolotl or the Trainer,"
            " or a memory snapshot",
        )
    return found


def _log_file(path: str) -> list[MemoryReading]:
    """The end of a log says as much as the whole: peaks only grow."""
    with open_file(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LARGEST_LOG))
        log = file.read(LARGEST_LOG).decode("utf-8", "replace")
    return read_log(log, os.path.basename(path))


def _text(subject: Subject, found: list[Judged], screen: Screen) -> str:
    groups: list[tuple[Block, ...]] = [(PlanHead(subject.name, subject.path),)]
    for judgement, explained in found:
        rows = [
            Fact("observed", _what(judgement)),
            Fact("predicted", _said(judgement)),
            Fact("verdict", _verdict(judgement)),
        ]
        if not explained and not judgement.consistent:
            rows.append(Fact("explanation", "no single assumption closes a quarter of the gap"))
        blocks: list[Block] = [Facts(tuple(rows))]
        if explained:
            best = [e for e in explained if _explains(e, judgement)]
            title = "what would explain it" if best else "what would explain a part of it"
            told = tuple(Prose(_explanation(item)) for item in (best or explained)[:SHOWN])
            blocks.append(Item(Prose(title, "dim"), told))
        groups.append(tuple(blocks))
    return text.document(groups, screen) + "\n"


def _what(judgement: Judgement) -> str:
    reading = judgement.reading
    name = "" if reading.metric == "any" else f"{reading.metric} "
    least = "at least " if reading.at_least else ""
    return f"{least}{name}{gib(reading.bytes)} GiB ({reading.source})"


def _said(judgement: Judgement) -> str:
    metric = judgement.reading.metric
    name = {"any": "device", "allocated": "allocated, BLAS workspaces included,"}.get(metric, metric)
    span = f"{gib(judgement.low_bytes)} to {gib(judgement.high_bytes)} GiB"
    return f"{name} {gib(judgement.predicted_bytes)} GiB; readings from {span} are consistent with it"


def _verdict(judgement: Judgement) -> str:
    gap = judgement.gap
    off = f"{gib(abs(gap))} GiB ({abs(gap) / judgement.predicted_bytes:.1%})"
    side = "above" if gap > 0 else "below"
    return f"{'consistent' if judgement.consistent else 'not consistent'}: {off} {side} the prediction"


def _explains(item: Explanation, judgement: Judgement) -> bool:
    return abs(item.remaining) <= TOLERANCE * judgement.reading.bytes


def _explanation(item: Explanation) -> str:
    stated = "the plan does not say" if item.stated is None else f"the plan says {value(item.stated)}"
    side = "above" if item.remaining > 0 else "below"
    left = f"the reading is {gib(abs(item.remaining))} GiB {side} that"
    return f"{item.key}: {value(item.value)} -> {gib(item.predicted_bytes)} GiB predicted, {left} ({stated})"


def _json(subject: Subject, found: list[Judged], consistent: bool) -> str:
    rows: list[dict[str, Any]] = [
        {
            "metric": judgement.reading.metric,
            "observed_bytes": judgement.reading.bytes,
            "at_least": judgement.reading.at_least,
            "source": judgement.reading.source,
            "predicted_bytes": judgement.predicted_bytes,
            "consistent_bytes": [judgement.low_bytes, judgement.high_bytes],
            "consistent": judgement.consistent,
            "explanations": [
                {
                    "key": e.key,
                    "value": e.value,
                    "stated": e.stated,
                    "predicted_bytes": e.predicted_bytes,
                    "remaining_bytes": e.remaining,
                    "set": e.changes,
                }
                for e in explained
            ],
        }
        for judgement, explained in found
    ]
    document = {
        "observed": 1,
        "memcheck": __version__,
        "path": subject.path,
        "name": subject.name,
        "consistent": consistent,
        "readings": rows,
    }
    return dumps(document, indent=1) + "\n"
