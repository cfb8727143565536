"""From hardware and parallelism to ranks."""

from __future__ import annotations

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.layout import resolve_layout
from memcheck.job.lookup import Defaults
from memcheck.job.types import Layout
from memcheck.plan.types import GpuSpec, HardwareSpec, ParallelismSpec

HARDWARE = HardwareSpec(GpuSpec("h100-80gb"), gpus_per_node=8, nodes=4)


def layout(framework: str | None = "megatron", hardware: HardwareSpec = HARDWARE, **degrees: object) -> Layout:
    """The layout of a plan with these degrees on 32 GPUs."""
    record = FRAMEWORKS[framework] if framework else None
    return resolve_layout(hardware, ParallelismSpec(**degrees), record, Defaults())


def assumed(framework: str = "megatron", **degrees: object) -> dict[str, object]:
    """What is assumed for a plan with these degrees."""
    defaults = Defaults()
    resolve_layout(HARDWARE, ParallelismSpec(**degrees), FRAMEWORKS[framework], defaults)
    return {a.key: a.value for a in defaults.assumptions()}


@pytest.mark.parametrize(
    ("degrees", "data"),
    [
        ({}, 32),
        ({"tensor": 4}, 8),
        ({"tensor": 4, "pipeline": 2}, 4),
        ({"tensor": 2, "context": 4, "pipeline": 4}, 1),
        ({"expert": 8}, 32),
        ({"tensor": 5}, 6),
        ({"tensor": 64}, 1),
    ],
)
def test_data_is_what_remains(degrees: dict[str, int], data: int) -> None:
    """The data degree is the number of GPUs over the other degrees, at least 1; experts take no ranks of their own."""
    assert layout(**degrees).data == data


def test_stated_data_stays() -> None:
    """A stated data degree is kept even when it contradicts the number of GPUs: a rule reports it."""
    assert layout(tensor=4, data=3).data == 3


def test_one_gpu_is_the_default() -> None:
    """Without numbers a plan runs on one GPU, and says so."""
    defaults = Defaults()
    found = resolve_layout(HardwareSpec(GpuSpec("h200")), ParallelismSpec(), FRAMEWORKS["pytorch"], defaults)
    assert found.world_size == found.data == 1
    assert {"hardware.gpus_per_node", "hardware.nodes"} <= {a.key for a in defaults.assumptions()}


@pytest.mark.parametrize(
    ("framework", "degrees", "sequence"),
    [
        ("megatron", {"tensor": 4}, True),
        ("torchtitan", {"tensor": 4}, True),
        ("pytorch", {"tensor": 4}, False),
        ("megatron", {}, False),
        ("megatron", {"tensor": 4, "sequence": False}, False),
        ("pytorch", {"tensor": 4, "sequence": True}, True),
    ],
)
def test_sequence_parallelism_follows_the_framework(framework: str, degrees: dict[str, object], sequence: bool) -> None:
    """Megatron and torchtitan split the residual stream with tensor parallelism unless told otherwise."""
    assert layout(framework, **degrees).sequence is sequence


def test_full_sharding_spans_data_and_context() -> None:
    """A ZeRO stage shards over every data and context rank unless a smaller group is stated."""
    assert layout("torchtitan", zero_stage=3, context=2, tensor=2).shard_group == 16
    assert layout("torchtitan", zero_stage=3, shard_group=8).shard_group == 8
    assert layout("torchtitan").shard_group == 1


def test_interleaving_is_the_schedule_of_virtual_stages() -> None:
    """Virtual stages without a schedule mean the interleaved one."""
    assert layout(pipeline=4, virtual_stages=2).pipeline_schedule == "interleaved-1f1b"
    assert layout(pipeline=4).pipeline_schedule == "1f1b"


def test_only_what_matters_is_assumed() -> None:
    """Defaults of features that the plan does not use are not listed."""
    assert "parallelism.reshard_after_forward" not in assumed(zero_stage=1)
    assert "parallelism.reshard_after_forward" in assumed("torchtitan", zero_stage=3)
    assert "parallelism.pipeline_schedule" not in assumed()
    assert assumed(pipeline=2)["parallelism.pipeline_schedule"] == "1f1b"
    assert assumed(tensor=2, expert=2)["parallelism.expert_tensor"] == 1


def test_megatrons_own_expert_tensor_degree_is_named() -> None:
    """A plan's default is 1; with experts and tensor parallelism the assumption says what Megatron-LM would take."""
    defaults = Defaults()
    degrees = ParallelismSpec(tensor=4)
    assert resolve_layout(HARDWARE, degrees, FRAMEWORKS["megatron"], defaults, routed=True).expert_tensor == 1
    why = next(a.why for a in defaults.assumptions() if a.key == "parallelism.expert_tensor")
    assert "takes the tensor degree, 4, unless given --expert-tensor-parallel-size 1" in why
    for framework, routed, stated in (("megatron", False, None), ("torchtitan", True, None), ("megatron", True, 2)):
        quiet = Defaults()
        resolve_layout(HARDWARE, degrees._replace(expert_tensor=stated), FRAMEWORKS[framework], quiet, routed=routed)
        assert "parallelism.expert_tensor" not in {a.key for a in quiet.assumptions()}


def test_inference_knows_no_framework() -> None:
    """Serving has degrees, but neither sharded states nor a schedule."""
    found = layout(None, tensor=4)
    assert (found.tensor, found.data, found.zero_stage, found.sequence) == (4, 8, 0, False)
