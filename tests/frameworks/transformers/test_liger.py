"""Modules that run in Liger's kernels: what they leave out, and where memcheck has no model of them."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.errors import UnsupportedError
from memcheck.families.registry import FAMILIES as READ
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.transformers.liger import FAMILIES
from memcheck.job.resolve import resolve
from memcheck.job.types import LIGER_KERNELS
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan


def peak_bytes(liger: object, model: str = "llama-3.2-1b", **training: Any) -> int:
    """Allocated bytes of a small model's step."""
    plan: dict[str, Any] = {
        "memcheck": 1,
        "model": {"name": model, "overrides": {"num_hidden_layers": 4}},
        "hardware": {"gpu": {"name": "any", "memory_gib": 10000}},
        "training": {"framework": "pytorch", "micro_batch_size": 2, "sequence_length": 2048} | training,
    }
    plan["training"]["kernels"] = {"ssm": "fused"} if liger is None else {"liger": liger}
    job = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    return max(rank.peak.allocated_bytes for rank in estimate(job.job, job.gpu, job.overhead).ranks)


def test_every_kernel_leaves_something_out() -> None:
    """Norms and gated layers keep less than transformers' own code, a rotation in place no more; ``true`` is all."""
    plain, every = peak_bytes(None), peak_bytes(list(LIGER_KERNELS))
    assert peak_bytes(True) == every
    assert peak_bytes(False) == plain
    assert peak_bytes(["rope"]) <= plain
    for name in ("rms_norm", "glu"):
        assert every < peak_bytes([name]) < plain, name


def test_families_are_those_that_are_read() -> None:
    """The table names model types as configurations do."""
    assert set(FAMILIES) <= set(READ)


@pytest.mark.parametrize(
    ("model", "training", "said"),
    [
        ("qwen3-30b-a3b", {}, r"Liger's kernels \(glu\) in qwen3_moe"),
        ("falcon-7b", {}, r"Liger's kernels \(rope, rms_norm, glu\) in falcon"),
        ("llama-3.2-1b", {"framework": "litgpt"}, "does not run transformers' modules"),
        ("llama-3.2-1b", {"compile": True}, "under torch.compile"),
    ],
)
def test_what_has_no_model_is_refused_at_its_key(model: str, training: dict[str, Any], said: str) -> None:
    """Never priced as something else, never left out."""
    with pytest.raises(UnsupportedError, match=said) as caught:
        peak_bytes(True, model, **training)
    assert caught.value.pointer == "/training/kernels/liger"


def test_only_the_trained_model_is_patched() -> None:
    """A teacher of a family that Liger does not know is estimated as it is."""
    teacher = {"model": {"name": "gpt2-medium"}}
    distilled: dict[str, Any] = {"framework": "huggingface", "objective": "distill", "teacher": teacher}
    assert peak_bytes(True, **distilled) < peak_bytes(None, **distilled)
