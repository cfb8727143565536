"""Training steps of vision-language models, held against traced ones."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.accounts.estimate import Estimate
from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.families.registry import TOWERS
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan
from tests.models.multimodal import QWEN2_5_VL, facts

MIB = 2**20
PARTS = {"tower": "vision", "audio_tower": "audio", "projector": "projector", "language_model": "language"}
RECIPES = {"bf16": "bf16-pure", "amp": "bf16-mixed", "fp32": "fp32", "autocast": "bf16-mixed"}
"""``autocast``: over weights in bf16, as the Trainer holds those below adapters."""
TRACED = {row["id"]: row for row in facts("traced") if row["model_type"] in TOWERS}


def priced(config: dict[str, Any], training: dict[str, Any], **plan: Any) -> Estimate:
    """The estimate of a plan of that model."""
    section = {"framework": "pytorch", "torch_version": "2.13", "micro_batch_size": 1, "sequence_length": 1024}
    values = {
        "memcheck": 1,
        "model": {"architecture": config},
        "hardware": {"gpu": {"name": "lab", "memory_gib": 100000}},
        "training": {**section, **training},
        **plan,
    }
    found = resolve(build_plan(values), FRAMEWORKS, base_dir=".")
    assert isinstance(found.gpu, Gpu)
    return estimate(found.job, found.gpu)


def training_of(row: dict[str, Any]) -> dict[str, Any]:
    """The training section of a traced record."""
    found: dict[str, Any] = {
        "micro_batch_size": row["batch"],
        "sequence_length": row["seq"],
        "precision": RECIPES[row["precision"]],
        "optimizer": {"name": "adamw", "implementation": row["opt_impl"]},
        "attention": row["attn"],
        "activation_checkpointing": row["recompute"],
        "clip_grad_norm": False,
        "loss": {"kind": "standard", "keep_logits": row["loss"] == "hf"},
        "initialization": "device",
        "checkpoint": "none",
        "images": {"per_sample": row["images"], "patches": row["patches"], "tokens": row["tokens"]},
    }
    if row["precision"] == "autocast":
        found |= {"framework": "huggingface", "framework_version": "5.23"}
    else:
        found["options"] = {"transformers_version": "5.23"}
    if row["slow_path"]:
        found["kernels"] = {"ssm": "fallback"}
    if row["freeze"]:
        found["freeze"] = [PARTS[part] for part in row["freeze"]]
    if row["lora"]:
        target = row["lora"]["target"]
        language = "language_model" in target
        found["method"] = "lora"
        found["lora"] = {"rank": row["lora"]["r"], "target_modules": "all-linear" if language else target}
        found["lora"] |= {"dtype": "fp32"} | ({"parts": ["language"]} if language else {})
        if row.get("pattern"):
            found["lora"] = {"rank": row["lora"]["r"], "target_modules": target, "dtype": "fp32"}
    return found


@pytest.mark.slow
def test_traced_steps() -> None:
    """A step's peak is within 0.3 % of the traced one; no instant is more than 0.5 % below its own, or 2.5 % above."""
    for name, row in TRACED.items():
        found = priced(row["config"], training_of(row))
        assert found.allocated_bytes / MIB == pytest.approx(row["peak_mib"], rel=0.003), name
        instants = {instant.name: instant.allocated_bytes / MIB for instant in found.ranks[0].instants}
        for phase in ("forward", "loss", "backward", "optimizer"):
            assert -0.005 < instants[phase] / row["phases_mib"][phase] - 1 < 0.025, phase
        assert found.parameters >= row["parameters"], name


def test_a_frozen_tower_saves_nothing_until_checkpointing_wakes_it() -> None:
    """Recomputing hooks the patch embedding, too: the frozen tower's layer inputs are kept, one for each layer."""
    images = {"patches": 3200, "tokens": 800}
    frozen = priced(QWEN2_5_VL, {"images": images, "freeze": ["vision", "projector"], "precision": "bf16-pure"})
    woken = priced(
        QWEN2_5_VL,
        {
            "images": images,
            "freeze": ["vision", "projector", "language"],
            "precision": "bf16-pure",
            "activation_checkpointing": "full",
        },
    )
    none = priced(
        QWEN2_5_VL,
        {
            "images": {"per_sample": 0},
            "freeze": ["vision", "projector", "language"],
            "precision": "bf16-pure",
            "activation_checkpointing": "full",
        },
    )
    layers = 32 * 3200 * 1280 * 2
    assert woken.components_bytes["activations"] - none.components_bytes["activations"] > layers
    assert frozen.trainable_parameters == frozen.parameters - 631_975_680 - 36_708_608


def test_adapters_by_part() -> None:
    """all-linear reaches the tower and the projector, unless the plan names the parts that it reaches."""
    lora = {"method": "lora", "images": {"patches": 3200, "tokens": 800}}
    everywhere = priced(QWEN2_5_VL, {**lora, "lora": {"rank": 16}})
    language = priced(QWEN2_5_VL, {**lora, "lora": {"rank": 16, "parts": ["language"]}})
    vision = priced(QWEN2_5_VL, {**lora, "lora": {"rank": 16, "parts": ["vision"]}})
    projector = priced(QWEN2_5_VL, {**lora, "lora": {"rank": 16, "parts": ["projector"]}})
    parts = language.trainable_parameters + vision.trainable_parameters + projector.trainable_parameters
    assert everywhere.trainable_parameters == parts
    assert everywhere.allocated_bytes > language.allocated_bytes


def test_text_alone_leaves_the_tower_its_weights() -> None:
    """Batches without pictures give the tower no gradient, and so no optimizer state."""
    full = priced(QWEN2_5_VL, {"images": {"per_sample": 0}})
    alone = priced({**QWEN2_5_VL, "vision_config": None}, {})
    beside = 4 * (631_975_680 + 36_708_608)
    rest = full.ranks[0].instants[0].allocated_bytes - alone.ranks[0].instants[0].allocated_bytes
    assert beside <= rest < beside + 2**20


def test_sharding_cuts_the_tower_layer_by_layer() -> None:
    """FSDP2 shards the tower's layers as units of their own: an eighth of its states rests on each of eight ranks."""
    training = {"framework": "huggingface", "images": {"patches": 3200, "tokens": 800}}
    hardware = {"gpu": {"name": "lab", "memory_gib": 1000}, "gpus_per_node": 8}
    one = priced(QWEN2_5_VL, training)
    eight = priced(QWEN2_5_VL, training, hardware=hardware, parallelism={"zero_stage": 3})
    whole = one.components_bytes["optimizer_states"]
    assert whole / 8 <= eight.components_bytes["optimizer_states"] < whole / 8 * 1.01


@pytest.mark.parametrize("degree", ["tensor", "context", "pipeline"])
def test_what_divides_the_model_itself_is_refused(degree: str) -> None:
    """How a tower is cut over tensor, context and pipeline ranks is not known, so it is no guess but an error."""
    hardware = {"gpu": {"name": "lab", "memory_gib": 1000}, "gpus_per_node": 2}
    with pytest.raises(UnsupportedError, match="vision tower"):
        priced(QWEN2_5_VL, {}, hardware=hardware, parallelism={degree: 2})


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "torchtune", "litgpt"])
def test_frameworks_with_models_of_their_own_refuse_towers(framework: str) -> None:
    """A framework that has no such model gets no figure."""
    with pytest.raises(UnsupportedError, match="qwen2_5_vl"):
        priced(QWEN2_5_VL, {"framework": framework, "torch_version": None})
