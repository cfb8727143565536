"""With which of the micro-batches of a step gradients are reduced, where the plan does not say."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan
from memcheck.timing.data_parallel import reduces_every
from tests.rules.plans import found

STEPS = "gradient_accumulation_steps: 4"


def resolved(framework: str, parallelism: dict[str, Any], **training: Any) -> tuple[TrainingJob, dict[str, Any], int]:
    """The job of a small model on 8 GPUs, why each key was assumed, and the bytes that a GPU allocates."""
    made = resolve(
        build_plan(
            {
                "memcheck": 1,
                "model": "llama-3.2-1b",
                "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8},
                "parallelism": parallelism,
                "training": {"framework": framework, "sequence_length": 128, **training},
            }
        ),
        FRAMEWORKS,
        base_dir=".",
    )
    assert isinstance(made.job, TrainingJob)
    peak = estimate(made.job, made.gpu, made.overhead).allocated_bytes
    return made.job, {a.key: (a.value, a.why) for a in made.assumptions}, peak


@pytest.mark.parametrize(
    ("framework", "usual"),
    [
        ("huggingface", "last"),
        ("litgpt", "last"),
        ("pytorch", "every"),
        ("torchtitan", "every"),
        ("torchtune", "every"),
    ],
)
def test_each_framework_has_its_own(framework: str, usual: str) -> None:
    """What its training loop does is the default, and is among the assumptions."""
    job, assumed, _ = resolved(framework, {"zero_stage": 3}, gradient_accumulation_steps=4)
    assert job.layout.gradient_sync == usual
    assert assumed["parallelism.gradient_sync"][0] == usual
    assert reduces_every(job) == (usual == "every")


@pytest.mark.parametrize("framework", ["huggingface", "litgpt"])
def test_gradients_that_wait_are_whole(framework: str) -> None:
    """Under FSDP, accumulation keeps gradients of the whole model on every rank until the last micro-batch."""
    job, _, one = resolved(framework, {"zero_stage": 3}, precision="bf16-pure")
    _, _, four = resolved(framework, {"zero_stage": 3}, precision="bf16-pure", gradient_accumulation_steps=4)
    assert four - one > 0.7 * 2 * 1_235_814_400
    assert job.gradient_accumulation_steps == 1


@pytest.mark.parametrize(("each", "sync"), [(True, "every"), (False, "last")])
def test_the_option_decides(each: bool, sync: str) -> None:
    """``sync_each_batch`` is what the Trainer reads, and the assumption says that it was taken from there."""
    job, assumed, _ = resolved(
        "huggingface", {"zero_stage": 3}, gradient_accumulation_steps=4, options={"sync_each_batch": each}
    )
    assert job.layout.gradient_sync == sync
    assert assumed["parallelism.gradient_sync"] == (sync, "options.sync_each_batch")


def test_litgpt_cannot_be_told() -> None:
    """Its scripts have no argument for it: to state the other way is an error, their own is none."""
    (finding,) = found("MEM408", "zero_stage: 3, gradient_sync: every", f"framework: litgpt, {STEPS}")
    assert "has no `gradient_sync`: " in finding.message
    assert not found("MEM408", "zero_stage: 3, gradient_sync: last", f"framework: litgpt, {STEPS}")


def test_the_default_is_no_setting_without_effect() -> None:
    """What a framework does anyway is not reported where nothing reads it."""
    assert not found("MEM416", "zero_stage: 3, gradient_sync: last", "framework: huggingface")
