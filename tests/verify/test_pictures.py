"""Traced steps on pictures, in every layout, against the estimate and against traces of another kind."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

import torch  # noqa: E402

from memcheck.frameworks.torch.tower_tensors import model_tensors  # noqa: E402
from memcheck.job.images import gives  # noqa: E402
from memcheck.verify.build.model import build_model  # noqa: E402
from memcheck.verify.compare import RefusedStepError  # noqa: E402
from memcheck.verify.observe import runnable, versions  # noqa: E402
from tests.frameworks.torch.test_towers import TRACED  # noqa: E402
from tests.models.multimodal import FACTS  # noqa: E402
from tests.verify.plans import plan, subject  # noqa: E402
from tests.verify.running import traced  # noqa: E402

SHARDED: dict[str, Any] = json.loads((FACTS / "sharded.json").read_text())
STEPS = {step["id"]: step for step in SHARDED["steps"]}
COMMON = {
    "optimizer": "sgd",
    "attention": "sdpa",
    "initialization": "device",
    "checkpoint": "none",
    "micro_batch_size": 1,
}
AGAIN = [name for name in STEPS if name not in ("qwen2_5_vl, FSDP2", "qwen2_5_vl, FSDP1, adapters")]
"""The steps that are traced again. The others take as long as all these together: their tower is traced under adapters,
and their ways of sharding with other towers."""
KINDS = {row["model_type"]: row["config"] for row in TRACED.values() if row["patches"]}
UNBUILT = ("gemma3n", "phi4_multimodal")
"""Of which the class takes another configuration than a plan's, needs timm, or is no class of pictures and text."""
OF_SOUNDS = ("nemotron_h_omni",)
"""Whose audio towers have convolutions of another shape."""


def pictured(step: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The plan of a step that was traced on tensors with values."""
    training = {**COMMON, **step["training"], **more}
    parallelism = {"zero_stage": 3} if step["gpus"] > 1 else {}
    model = {"architecture": SHARDED["configs"][step["config"]]}
    return plan(model=model, gpus=step["gpus"], parallelism=parallelism, **training)


@pytest.mark.parametrize("name", AGAIN)
def test_a_trace_is_that_of_tensors_with_values(name: str) -> None:
    """Fake tensors with the values of whole numbers alone take the same memory as those that have all of theirs."""
    _, observation, (comparison,) = traced(pictured(STEPS[name]))
    seen = {instant.name: instant.allocated_bytes / 2**20 for instant in observation.ranks[0].instants}
    recorded = STEPS[name]["phases_mib"]
    # Idefics 3 was given a mask of fewer bytes, of pictures that are not padded
    near = 2e-2 if STEPS[name]["config"] == "idefics3" else 3e-3
    if gives(versions()["transformers"]):
        assert {phase: seen[phase] for phase in recorded} == pytest.approx(recorded, rel=near)
    else:  # whose outputs keep less of the tower
        assert all(seen[phase] <= recorded[phase] * (1 + near) for phase in recorded)
        assert seen["optimizer"] == pytest.approx(recorded["optimizer"], rel=near)
    assert comparison.agrees(0.03)


LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas": {"parallelism": {"zero_stage": 0}, "gpus": 4, "options": {}},
    "text alone": {"images": {"per_sample": 0}},
    "text alone, FSDP1": {"images": {"per_sample": 0}, "options": {"fsdp_version": 1}},
    "frozen tower": {"freeze": ["vision"]},
    "frozen tower, FSDP1": {"freeze": ["vision"], "options": {"fsdp_version": 1}},
    "projector alone": {"freeze": ["vision", "language"]},
    "adapters of the language model": {
        "method": "lora",
        "lora": {"rank": 8, "target_modules": "all-linear", "dtype": "fp32", "parts": ["language"]},
    },
    "recompute": {"activation_checkpointing": "full"},
}


@pytest.mark.parametrize(
    ("name", "config"), list(zip(LAYOUTS, itertools.cycle(["llava", "gemma3", "gemma3"]), strict=False))
)
def test_every_moment_is_predicted(name: str, config: str) -> None:
    """No moment of a step is more than 0.5 % below the traced one, but for copies of outputs that DDP makes."""
    step = STEPS["gemma3, FSDP2 of accelerate" if config == "gemma3" else "llava, FSDP2"]
    changes = dict(LAYOUTS[name])
    training = {**COMMON, **step["training"], "framework": "huggingface", "framework_version": "5.24"}
    training |= {"precision": {"recipe": "bf16-mixed", "reduce": "fp32"}}
    parallelism = changes.pop("parallelism", {"zero_stage": 3})
    gpus, model = changes.pop("gpus", 4), {"architecture": SHARDED["configs"][config]}
    if changes.get("options") or "zero_stage" not in parallelism or not parallelism["zero_stage"]:
        training["precision"] = "bf16-mixed"
    training["options"] = {"accelerate_version": "1.13"}
    _, observation, (comparison,) = traced(
        plan(model=model, gpus=gpus, parallelism=parallelism, **{**training, **changes})
    )
    seen = {instant.name: instant.allocated_bytes for instant in observation.ranks[0].instants}
    assert comparison.predicted is not None
    for instant in comparison.predicted.instants:
        lowest = 0.98 if name == "replicas" else 0.995
        assert instant.allocated_bytes / seen[instant.name] > lowest, instant.name


@pytest.mark.parametrize("kind", sorted({*KINDS} - {*UNBUILT, *OF_SOUNDS}))
def test_shapes_are_those_of_the_class(kind: str) -> None:
    """Each parameter has the shape that the class makes: FSDP cuts the first dimension."""
    images = {"patches": 0, "tokens": 0, "per_sample": 0}
    try:
        asked = runnable(
            subject(plan(model={"architecture": KINDS[kind]}, images={"per_sample": images["per_sample"]}))
        )
    except AssertionError as problem:  # a class that takes no batch without pictures
        pytest.skip(str(problem)[:80])
    with torch.device("meta"):
        model = build_model(asked.job, asked.architecture, asked.config)
    built = sorted(tuple(p.shape) for p in model.parameters())
    said = sorted(tuple(t.shape) for tensors in model_tensors(asked.job, asked.architecture) for t in tensors)
    assert said == built


def test_pictures_that_nobody_can_make_are_refused() -> None:
    """Rows that are no grid of a merger's squares have no picture, and the refusal says how many they are."""
    step = STEPS["qwen2_5_vl, FSDP2"]
    with pytest.raises(RefusedStepError, match="1022 rows are no grid of 2 x 2 patches"):
        traced(pictured(step, images={"per_sample": 1, "patches": 1022, "tokens": 256}))
