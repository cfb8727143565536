"""What DeepSpeed offloads: traced engines, and the tensors that no trace on a CPU can show."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.deepspeed_cases import offloaded, plan
from benchmarks.score import resolved
from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.deepspeed import reduction
from memcheck.frameworks.deepspeed import step as deepspeed_host
from memcheck.frameworks.deepspeed.engine import partitions
from memcheck.frameworks.deepspeed.profile import FRAMEWORK as DEEPSPEED
from memcheck.frameworks.deepspeed.step import HOST, block, engine_host
from memcheck.job.types import Layout, Lora, Optimizer, TrainingJob
from memcheck.memory.estimate import estimate
from tests.memory.jobs import job

N = 1 << 30
TENSORS = [LocalTensor("a", (3 * N,), trained=True), LocalTensor("b", (N,), trained=True)]


@pytest.mark.parametrize("record", offloaded(), ids=lambda record: record["id"])
def test_gpu_and_host_together_are_what_was_traced(record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At rest, in forward and in backward; the optimizer that was traced is torch's.

    Pinning on a CPU rounds nothing, and nothing is copied from there to the device, which is the same.
    """
    monkeypatch.setattr(deepspeed_host, "block", lambda n_bytes, pinned: n_bytes)
    monkeypatch.setattr(reduction, "back_from_host", lambda n_bytes: 0 * n_bytes)
    monkeypatch.setattr(reduction, "_scattered", reduction._scattered.__wrapped__)  # which remembers nothing
    case, gpu, overhead = resolved(plan(record))
    assert isinstance(case, TrainingJob)
    found = {i.name: i.allocated_bytes for i in estimate(case, gpu, overhead).ranks[0].instants}
    found["forward"] = max(found["forward"], found["loss"])  # a traced forward has the loss in it
    host = sum(count for name, count in HOST.states(case) if name != "fragmentation") // record["world"]
    for name in ("init", "forward", "backward"):
        assert -0.001 < (found[name] + host) / record["instants_bytes"][name] - 1 < 0.006, name


def offloading(stage: int, optimizer: str = "cpu", parameters: str = "none", **changes: Any) -> TrainingJob:
    """A job on four GPUs."""
    layout = Layout(gpus_per_node=4, data=4, zero_stage=stage, shard_group=4)
    case = job(framework="deepspeed", recipe=DEEPSPEED.precisions.recipes["bf16-mixed"], layout=layout)
    case = case._replace(optimizer=Optimizer("adamw", "fused", optimizer), parameter_offload=parameters)
    return case._replace(**{"options": (("pin_memory", False),), **changes})


def test_pinned_blocks_are_powers_of_two() -> None:
    """What is not pinned has its own size."""
    assert [block(n, pinned=True) for n in (0, 1, 4096, 4097)] == [0, 1, 4096, 8192]
    assert block(4097, pinned=False) == 4097


def test_stage_2_casts_the_updated_partition_on_the_host() -> None:
    """4 + 4 + 8 bytes, 2 for the way back, and a buffer of the largest tensor."""
    found = dict(engine_host(offloading(2), TENSORS))
    assert found["communication_buffers"] == 2 * N + 2 * 3 * N
    assert (found["master_weights"], found["gradients"], found["optimizer_states"]) == (4 * N, 4 * N, 8 * N)
    pinned = dict(engine_host(offloading(2, options=()), TENSORS))
    assert pinned["communication_buffers"] == 2 * N + 8 * N


def test_stage_2_sums_whole_tensors() -> None:
    """With several micro-batches, those of which the partition has a part; the stage before sums on the GPU."""
    assert dict(engine_host(offloading(2, gradient_accumulation_steps=2), TENSORS))["gradients"] == 4 * N + 2 * 3 * N
    assert dict(engine_host(offloading(1, gradient_accumulation_steps=2), TENSORS))["gradients"] == 4 * N
    found = partitions([6, 8, 9, 7], 3)
    assert [[whole for whole, _ in mine] for mine in found] == [[6, 8], [8, 9], [9, 7]]
    assert [[part for _, part in mine] for mine in found] == [[6, 4], [4, 6], [3, 7]]


def test_stage_3_has_gradients_twice() -> None:
    """As they are summed, and in fp32 for the optimizer."""
    assert dict(engine_host(offloading(3), TENSORS))["gradients"] == 2 * N + 4 * N
    wider = offloading(3, options=(("grad_accum_dtype", "fp32"), ("pin_memory", False)))
    assert dict(engine_host(wider, TENSORS))["gradients"] == 8 * N


def test_offloaded_parameters_leave_their_first_blocks() -> None:
    """Each partition is pinned when it is made; the flat buffer replaces it, and the allocator keeps the block."""
    found = dict(engine_host(offloading(3, "none", "cpu", options=()), TENSORS))
    assert found == {"parameters": 2 * N, "fragmentation": 2 * N + N // 2}


def test_nvme_leaves_buffers() -> None:
    """Four of the largest sub-group in fp32, and one of its gradients; the sums stay in host memory."""
    found = dict(engine_host(offloading(3, "nvme"), TENSORS))
    assert found == {"gradients": 2 * N + 4 * N, "communication_buffers": 4 * 4 * N}
    six = offloading(3, "nvme", options=(("buffer_count", 6), ("pin_memory", False)))
    assert dict(engine_host(six, TENSORS))["communication_buffers"] == 6 * 4 * N
    parameters = dict(engine_host(offloading(3, "none", "nvme"), TENSORS))
    assert parameters["parameters"] == 1 << 31  # max_in_cpu elements of 2 bytes, pinned whatever the plan says
    assert parameters["communication_buffers"] > 5 * 2 * 100_000_000


def test_adapters_alone_are_offloaded() -> None:
    """The frozen base has neither states nor gradients."""
    whole = sum(count for _, count in HOST.states(offloading(2)))
    adapters = sum(count for _, count in HOST.states(offloading(2, method="lora", lora=Lora())))
    assert adapters < whole / 50
