"""DeepSpeed's compressing optimizers: what they keep and take, held to traces of its own classes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.cases import load
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes
from memcheck.autograd.tensor import rounded
from memcheck.check import Gate, check_file
from memcheck.configs.importing import import_config
from memcheck.configs.types import ReadSetting
from memcheck.frameworks.deepspeed.one_bit import LAMB, errors, padded, pool, step_bytes

SCALARS = 2048
"""Norms and scales of a step, which are one number each."""
PLAN = """\
memcheck: 1
model: qwen3-0.6b
hardware: {{gpu: h100-80gb, gpus_per_node: 8}}
parallelism: {{zero_stage: {stage}}}
training: {{framework: {framework}, micro_batch_size: 1, sequence_length: 512, precision: {precision},
  optimizer: {optimizer}}}
"""


@pytest.mark.parametrize("record", load("one_bit.json")["cases"], ids=lambda r: f"{r['optimizer']} {r['sizes']}")
def test_what_rests_and_what_a_step_takes_are_those_of_traced_classes(record: dict[str, Any]) -> None:
    """Without CuPy's pool, which torch does not count, and without the gradients that its caller holds."""
    name, ranks, sizes = record["optimizer"], record["ranks"], record["sizes"]
    tensors = [LocalTensor("", (n,), trained=True) for n in sizes]
    rests = sum(optimizer_state_bytes(t, t.numel, name, "fp32") for t in tensors) + errors(sum(sizes), ranks)
    assert 0 <= rests - record["rests_bytes"] <= 512 * 4 * len(sizes)  # a flat tensor has one block
    gradients = rounded(4 * sum(sizes)) - (0 if name == LAMB else 2 * sum(sizes))
    peak = rests + step_bytes(name, sizes, ranks, 2) - gradients
    assert abs(peak - record["peak_bytes"]) <= SCALARS


def test_the_compressed_moment_is_whole_bytes_on_every_rank() -> None:
    """A multiple of ranks times ranks * 8 / gcd(ranks, 8)."""
    assert [padded(1000, ranks) for ranks in (1, 6, 8)] == [1000, 1008, 1024]
    assert pool(1024, 8) == 4 * 512 + 512 + 1024
    assert pool(1024, 1) == 0


def judged(stage: int = 0, framework: str = "deepspeed", precision: str = "fp16-mixed", name: str = "adamw") -> Any:
    """A plan's estimate and its errors."""
    text = PLAN.format(stage=stage, framework=framework, precision=precision, optimizer=name)
    (plan,), _ = check_file("plan.yaml", text.encode(), Gate())
    return plan


def worst(name: str) -> int:
    """Bytes that torch's allocator holds at the peak of a step with an optimizer."""
    found = max(instant.allocated_bytes for rank in judged(name=name).estimate.ranks for instant in rank.instants)
    return int(found)


@pytest.mark.parametrize("name", ["onebit-adam", "zero-one-adam", "onebit-lamb"])
def test_a_job_needs_more_with_them_than_with_adam(name: str) -> None:
    """They save communication, not memory."""
    assert worst(name) > worst("adamw")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage": 1}, "not compatible with ZeRO"),
        ({"framework": "huggingface", "precision": "bf16-mixed"}, "is DeepSpeed's"),
        ({"precision": "fp32"}, "no model of onebit-adam on fp32"),
    ],
)
def test_what_deepspeed_does_not_run_is_refused(changes: dict[str, Any], message: str) -> None:
    """By its own assertion, or because nothing is known of it."""
    found = judged(name="onebit-adam", **changes)
    assert found.estimate is None
    assert any(message in each.message for each in found.findings)


def read(**parameters: object) -> Any:
    """A config with an optimizer of DeepSpeed's."""
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "OnebitAdam", "params": {"lr": 3e-5, "freeze_step": 400, **parameters}},
        "fp16": {"enabled": True},
    }
    stated = {"hardware.gpu": ReadSetting("h100-80gb", "test"), "hardware.gpus_per_node": ReadSetting(8, "test")}
    return import_config("ds.json", json.dumps(config).encode(), stated)


def test_configs_name_them_as_deepspeed_does() -> None:
    """In any case of letters (``runtime/config.py``); another backend than NCCL's or MPI's is refused."""
    assert read(cuda_aware=False, comm_backend_name="mpi").settings["training.optimizer.name"].value == "onebit-adam"
    assert any("compressed" in each.message for each in read(comm_backend_name="compressed").problems)
