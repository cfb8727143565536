"""Which of PyTorch's behaviours a plan means."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.job.versions import behaviour
from memcheck.plan.read import build_plan

FSDP = {"zero_stage": 3}
WIDE = {"precision": {"recipe": "bf16-mixed", "reduce": "fp32"}}


def resolved(parallelism: dict[str, Any], **training: Any) -> tuple[tuple[str, ...], list[tuple[str, object]]]:
    """The behaviours of a job, and what was assumed about the version."""
    found = resolve(
        build_plan(
            {
                "memcheck": 1,
                "model": "llama-3.2-1b",
                "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8},
                "parallelism": parallelism,
                "training": {"framework": "pytorch", "sequence_length": 128, "precision": "bf16-mixed", **training},
            }
        ),
        FRAMEWORKS,
        base_dir=".",
    )
    assert isinstance(found.job, TrainingJob)
    return found.job.torch, [(a.key, a.value) for a in found.assumptions if "torch_version" in a.key]


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("2.13.0+cpu", "2.13"),
        ("2.14.1", "2.13"),
        ("2.6", "2.13"),
        ("2.15.0", "2.15"),
        ("2.15.0.dev20260901", "2.15"),
        ("2.100", "2.15"),
        ("5.23", None),
        ("3.0", None),
        ("nightly", None),
        (None, None),
    ],
)
def test_versions_before_2_15_behave_like_2_13(version: str | None, found: str | None) -> None:
    """Local and development versions count; what is no version of PyTorch 1 or 2 says nothing."""
    assert behaviour(version) == found


@pytest.mark.parametrize(
    ("parallelism", "training"),
    [
        (FSDP, {"loss": "chunked"}),
        (FSDP, {**WIDE, "loss": "chunked", "framework": "huggingface", "framework_version": "5.23"}),
        ({**FSDP, "gradient_sync": "last"}, {"gradient_accumulation_steps": 2}),
        ({"pipeline": 8}, {"gradient_accumulation_steps": 8}),
    ],
)
def test_without_a_version_all_of_them_count(parallelism: dict[str, Any], training: dict[str, Any]) -> None:
    """Where they differ, and the assumptions say so; the framework's version is not PyTorch's."""
    assert resolved(parallelism, **training) == (("2.13", "2.15"), [("training.torch_version", "2.13 to 2.15")])
    assert resolved(parallelism, **training, torch_version="2.13.0") == (("2.13",), [])
    assert resolved(parallelism, **training, torch_version="2.15") == (("2.15",), [])


def test_the_framework_pytorch_has_its_version() -> None:
    """With framework pytorch, framework_version says the same, and torch_version goes before it."""
    assert resolved(FSDP, loss="chunked", framework_version="2.13") == (("2.13",), [])
    assert resolved(FSDP, loss="chunked", framework_version="2.13", torch_version="2.15") == (("2.15",), [])


@pytest.mark.parametrize(
    ("parallelism", "training"),
    [
        ({}, {"loss": "chunked"}),
        (FSDP, {}),
        (FSDP, {"loss": "chunked", "precision": "bf16-pure"}),
        (FSDP, {"loss": "chunked", "framework": "torchtitan"}),
        (FSDP, {"loss": "chunked", "framework": "huggingface"}),  # reduced in what it computes in
        (FSDP, {"gradient_accumulation_steps": 2}),
        ({"zero_stage": 1, "pipeline": 8}, {"framework": "megatron", "gradient_accumulation_steps": 8}),
    ],
)
def test_elsewhere_the_version_is_nothing_to_assume(parallelism: dict[str, Any], training: dict[str, Any]) -> None:
    """Nothing is noted where no version takes more memory than the one that counts; a stated one is believed."""
    assert resolved(parallelism, **training) == (("2.13",), [])
    assert resolved(parallelism, **training, torch_version="2.15.0") == (("2.15",), [])
