"""No key of a plan is silently without effect.

Each plan is judged with and without one value. The value must change the estimate or the time of a step, or be what the
job has anyway, or be reported: by a finding, or by an assumption under its key. What is left has a reason here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from memcheck.errors import MemcheckError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import Resolved, resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import read_plan, with_changes
from memcheck.record import Record
from memcheck.rules.run import check_layout, make_context, rules_for
from memcheck.timing.step import step_time
from tests.rules.plans import document

DENSE, ROUTED = "qwen2.5-0.5b", "olmoe-1b-7b"
STEP = "micro_batch_size: 2, sequence_length: 2048, gradient_accumulation_steps: 4"
EVERY_RULE = rules_for(lambda code: True)

BASES: dict[str, tuple[str, dict[str, object]]] = {
    "replicated": (DENSE, {}),
    "stage 1": (DENSE, {"parallelism.zero_stage": 1}),
    "stage 3": (DENSE, {"parallelism.zero_stage": 3}),
    "tensor": (DENSE, {"parallelism.tensor": 2}),
    "pipeline": (DENSE, {"parallelism.pipeline": 2}),
    "sharded pipeline": (DENSE, {"parallelism.pipeline": 2, "parallelism.zero_stage": 3}),
    "routed": (ROUTED, {"parallelism.zero_stage": 3}),
    "experts": (ROUTED, {"parallelism.zero_stage": 3, "parallelism.expert": 2}),
    "adapters": (DENSE, {"training.method": "lora"}),
    "one GPU": (DENSE, {"hardware.gpus_per_node": 1}),
}

P, T, MIXED = "parallelism.", "training.", {"training.precision": {"recipe": "bf16-mixed"}}
FULL = {"training.activation_checkpointing": {"mode": "full"}}
VALUES: tuple[tuple[str, object, dict[str, object]], ...] = (
    *((P + "sequence", value, {}) for value in (True, False)),
    *((P + "pipeline_schedule", value, {}) for value in ("1f1b", "gpipe", "zero-bubble")),
    (P + "virtual_stages", 2, {}),
    (P + "reshard_after_forward", False, {}),
    (P + "gradient_sync", "last", {}),
    (P + "gradient_as_bucket_view", True, {}),
    (P + "shard_group", 4, {}),
    (P + "context", 2, {}),
    (P + "expert_tensor", 2, {}),
    (T + "framework_version", "9.9", {}),
    (T + "lora", {"rank": 4}, {}),
    (T + "lora", {"dtype": "bf16"}, {}),
    (T + "lora", {"target_modules": ["q_proj"]}, {}),
    (T + "lora", {"dropout": 0.1}, {}),
    (T + "lora", {"dora": True}, {}),
    (T + "lora", {"modules_to_save": ["embed_tokens"]}, {}),
    (T + "lora", {"target_parameters": ["mlp.experts.down_proj"]}, {}),
    (T + "lora", {"target_parameters": ["mlp.experts.down_proj"], "expert_rank": 4}, {}),
    *((T + "freeze", value, {}) for value in (["embed"], ["layers:0-4"])),
    *((T + "optimizer", {"name": "adamw", "implementation": i}, {}) for i in ("foreach", "fused", "for-loop")),
    *((T + "optimizer", name, {}) for name in ("sgd", "adafactor", "adamw-8bit", "muon", "lion")),
    (T + "optimizer.offload", "cpu", {T + "optimizer": {"name": "adamw"}}),
    *((T + "activation_checkpointing", mode, {}) for mode in ("selective", "full")),
    *((T + "activation_checkpointing.reentrant", value, FULL) for value in (True, False)),
    (T + "activation_checkpointing.every_n_layers", 2, FULL),
    (T + "activation_checkpointing.offload", "cpu", FULL),
    *((T + "attention", value, {}) for value in ("eager", "sdpa", "flash", "flex")),
    *((T + "loss", {"kind": kind}, {}) for kind in ("standard", "chunked", "fused-linear", "vocab-parallel")),
    (T + "loss.chunks", 4, {T + "loss": {"kind": "chunked"}}),
    *((T + "loss.upcast", value, {T + "loss": {"kind": "standard"}}) for value in (True, False)),
    *((T + "loss.keep_logits", value, {T + "loss": {"kind": "standard"}}) for value in (True, False)),
    (T + "loss.upcast", False, {T + "loss": {"kind": "chunked"}}),
    (T + "loss.keep_logits", True, {T + "loss": {"kind": "chunked"}}),
    (T + "loss.upcast", False, {T + "loss": {"kind": "fused-linear"}}),
    (T + "loss.keep_logits", True, {T + "loss": {"kind": "fused-linear"}}),
    (T + "activation_checkpointing.offload", "cpu", {T + "activation_checkpointing": {"mode": "none"}}),
    (T + "activation_checkpointing.reentrant", True, {T + "activation_checkpointing": {"mode": "none"}}),
    (T + "activation_checkpointing.every_n_layers", 2, {T + "activation_checkpointing": {"mode": "none"}}),
    (T + "lora.rank", 4, {}),
    *((T + "clip_grad_norm", value, {}) for value in (True, False)),
    (T + "expert_imbalance", 2.0, {}),
    (T + "compile", True, {}),
    *((T + "expandable_segments", value, {}) for value in (True, False)),
    (T + "offload", {"parameters": "cpu"}, {}),
    *((T + "precision.reduce", value, MIXED) for value in ("fp32", "bf16")),
    *((T + "precision.gradients", value, MIXED) for value in ("fp32", "bf16")),
    *((T + "precision.master", value, MIXED) for value in ("none", "fp32")),
    *((T + "precision.optimizer_states", value, MIXED) for value in ("fp32", "bf16")),
    *((T + "precision.params", value, MIXED) for value in ("fp32", "bf16")),
    *((T + "precision", value, {}) for value in ("fp32", "bf16-pure", "fp16-mixed", "fp8-mixed")),
    *((T + "torch_version", value, {}) for value in ("2.13", "2.15")),
)

SILENT: dict[str, str] = {
    "training.attention: flash": "the fused kernels keep the same tensors: queries, keys, values, output, one row sum",
    "training.attention: flex": "the same",
    "training.attention: sdpa": "the same",
    "training.activation_checkpointing.reentrant: True": "both ways keep a block's input and recompute the same block",
    "training.precision: fp16-mixed": "fp16 has the width of bf16 in every tensor, and its rate on tensor cores",
    "training.framework_version: 9.9": "a note for readers: the records are those of one version, which they name",
    "training.torch_version: 2.13": "it says how PyTorch behaves, which differs under FSDP2 and pipelines only",
    "training.torch_version: 2.15": "the same",
}
"""Values that may pass unseen, and why."""


class Judged(Record):
    """A plan before its estimate."""

    resolved: Resolved
    said: frozenset[object]


@lru_cache(maxsize=4096)
def _judged(framework: str, base: str, changes: tuple[tuple[str, str], ...]) -> Judged | None:
    """What rules and assumptions say; None where the plan cannot run as written."""
    import ast

    model, own = BASES[base]
    source = with_changes(
        document(training=f"framework: {framework}", model=model, gpu="b200", defaults=STEP),
        {**own, **{key: ast.literal_eval(value) for key, value in changes}},
    )
    plan, findings = read_plan(source)
    if plan is None:
        return None
    try:
        resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    except MemcheckError:
        return None
    context = make_context(plan, source, resolved, fail_above=1.0, warn_above=1.0)
    findings = [*findings, *check_layout(context, EVERY_RULE)[0]]
    said = {(f.code, f.message, f.severity) for f in findings}
    return Judged(resolved, frozenset((*said, *((a.key, a.why) for a in resolved.assumptions if a.why != "default"))))


@lru_cache(maxsize=4096)
def _figures(resolved: Resolved) -> object:
    """The estimate, or why there is none."""
    try:
        return estimate(resolved.job, resolved.gpu, resolved.overhead)
    except MemcheckError as error:
        return str(error)


def _time(resolved: Resolved) -> object:
    try:
        return step_time(resolved.job, resolved.gpu)
    except MemcheckError as error:
        return str(error)


def _unseen(framework: str, base: str) -> Iterator[str]:
    for key, value, beside in VALUES:
        without = tuple((k, repr(v)) for k, v in beside.items())
        before, after = (_judged(framework, base, c) for c in (without, (*without, (key, repr(value)))))
        if before is None or any(len(each) == 3 and each[2] == "error" for each in before.said):
            continue
        if after is None or before.resolved.job == after.resolved.job or after.said - before.said:
            continue
        if any(len(each) == 3 for each in before.said - after.said):
            continue  # it ends a finding
        if isinstance(_figures(before.resolved), str) or _figures(before.resolved) != _figures(after.resolved):
            continue
        if _time(before.resolved) == _time(after.resolved):
            yield f"{key}: {value}"


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_value_counts(framework: str) -> None:
    """A value moves the estimate or the time, is the job's anyway, is reported, or has its reason in ``SILENT``."""
    found = {(base, each) for base in BASES for each in _unseen(framework, base)}
    assert sorted(each for each in found if each[1] not in SILENT) == []
