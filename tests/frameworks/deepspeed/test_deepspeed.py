"""The DeepSpeed engine: every traced instant, and what its options do to its buffers."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.deepspeed_cases import compared, plan, records
from benchmarks.score import resolved
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.deepspeed.engine import DEFAULTS, EngineBuffers, engine_buffers, fullest_partition
from memcheck.frameworks.deepspeed.profile import FRAMEWORK as DEEPSPEED
from memcheck.job.types import Evaluation, Layout, Optimizer, Overhead
from memcheck.memory.estimate import estimate
from tests.memory.jobs import BIG_GPU, job

LARGEST = 525_336_576
P = LARGEST + 30 * 250_000_000 + 50_000
TENSORS = [
    LocalTensor("embed_tokens.weight", (LARGEST,), trained=True),
    *(LocalTensor(f"layers.{i}", (250_000_000,), trained=True) for i in range(30)),
    LocalTensor("norms", (50_000,), trained=True),
]
LOOSE = {
    "deepspeed.z2.t16.nocontig": 0.07,
    "deepspeed.z2.large.commfp32": 0.035,
    "deepspeed.z2.bf16.ulysses4.repeated-keys": 0.018,
    "deepspeed.z3.lora.qv": 0.02,
    "deepspeed.z3.sub": 0.03,
    "deepspeed.z3.large.whole.commfp32": 0.08,
    "deepspeed.z3.mixtral.full": 0.055,
}
"""Of another rank than the fullest: its own gradients, the last sub-group. Or of another bucket than the largest, and of
ZeRO-3's backward, which lets go of parameters unit by unit; or of a first layer, half of which has no backward; or of a
leaf whose buffer is gone when its layer is at its highest.
"""


@pytest.mark.slow
def test_every_instant_of_a_traced_step_is_predicted() -> None:
    """All four instants of each recorded step: at most 0.9 % too low, and 1.2 % too high."""
    for record in records():
        traced, (case, gpu, overhead) = record["instants_bytes"], resolved(plan(record))
        found = {i.name: i.allocated_bytes for i in estimate(case, gpu, overhead).ranks[0].instants}
        found["forward"] = max(found["forward"], found["loss"])  # a traced forward has the loss in it
        for name, truth in traced.items():
            assert -0.009 <= found[name] / truth - 1 <= LOOSE.get(record["id"], 0.012), name


@pytest.mark.parametrize("record", compared(), ids=lambda record: record["id"])
def test_every_instant_of_a_compared_step_is_predicted(record: dict[str, Any]) -> None:
    """Losses of TRL around the engine: a reference beside it, adapters off, a head of rewards.

    At most 0.5 % too low; ZeRO-3 is told to keep more parameters than it does once a second pass runs between forward
    and backward, which is all of the two MiB that its limits allow here.
    """
    traced, (case, gpu, overhead) = record["instants_bytes"], resolved(plan(record))
    found = {i.name: i.allocated_bytes for i in estimate(case, gpu, overhead).ranks[0].instants}
    found["forward"] = max(found["forward"], found["loss"])
    above = 2 * 2**20 if case.layout.zero_stage == 3 else 0
    for name, truth in traced.items():
        assert -0.005 * truth <= found[name] - truth <= 0.019 * truth + above, name


def buffers(stage: int, **changes: Any) -> EngineBuffers:
    """Of an 8B model on eight GPUs."""
    layout = Layout(gpus_per_node=8, data=8, zero_stage=stage, shard_group=8)
    base = job(
        framework="deepspeed",
        recipe=DEEPSPEED.precisions.recipes["bf16-mixed"],
        layout=layout,
        optimizer=Optimizer("adamw", "fused"),
    )
    return engine_buffers(base._replace(**changes), [[t] for t in TENSORS], recomputes=True)


def test_bucket_sizes_are_elements() -> None:
    """5e8 elements by default; `auto` is what transformers fills in, the hidden size squared."""
    assert buffers(2).gradient_buckets == 1_000_000_000
    auto = (("reduce_bucket_size", "auto"),)
    assert buffers(2, options=auto).gradient_buckets == rounded(2 * 4096 * 4096)
    assert buffers(0).gradient_buckets == 0


@pytest.mark.parametrize("written", [5e7, 50_000_000, "50000000"])
def test_a_size_may_be_written_in_each_way(written: object) -> None:
    """JSON's 5e7 is a float, YAML's 5e7 without a point a text: what is meant is a whole number of elements."""
    assert buffers(2, options=(("reduce_bucket_size", written),)).gradient_buckets == rounded(2 * 50_000_000)


def test_sizes_that_nobody_states_are_deepspeeds() -> None:
    """The defaults of ``DeepSpeedZeroConfig`` (runtime/zero/config.py), to the element."""
    assert DEFAULTS == {
        "reduce_bucket_size": 5e8,
        "stage3_prefetch_bucket_size": 5e7,
        "stage3_param_persistence_threshold": 1e5,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "sub_group_size": 1e9,
    }


def test_overlapped_reduction_has_two_buckets_and_what_exceeds_one() -> None:
    """The second is filled while the first is reduced; an embedding larger than a bucket waits for the end by itself."""
    found = buffers(2, options=(("overlap_comm", True),))
    assert found.gradient_buckets == 2 * 1_000_000_000
    assert found.copies_after_backward == rounded(2 * LARGEST)


def test_fp32_sums_of_stage_1_are_a_whole_model() -> None:
    """BF16_Optimizer keeps them from step to step, undivided."""
    found = buffers(1, options=(("grad_accum_dtype", "fp32"),))
    assert found.persistent_gradients == rounded(4 * P)
    assert found.gradient_buckets == found.partition_gradients == 0
    assert found.flat_gradients == rounded(2 * P)  # they are reduced in bf16: a traced backward was 12.3 % higher by it
    wide = buffers(1, options=(("grad_accum_dtype", "fp32"), ("communication_data_type", "fp32")))
    assert wide.flat_gradients == rounded(4 * LARGEST)  # each gradient is cast to be added to them


def test_without_zero_gradients_are_copied_twice_in_fp32() -> None:
    """FP16_Optimizer casts every gradient, then flattens them; and all-reduces 5e8 elements at a time."""
    found = buffers(0)
    assert found.step_temporaries == 2 * rounded(4 * P)
    assert found.flat_gradients == rounded(2 * 500_000_000)
    wide = buffers(0, options=(("communication_data_type", "fp32"),))
    assert wide.flat_gradients == rounded(2 * 500_000_000) + rounded(4 * 500_000_000)


def test_stage_3_keeps_small_parameters_whole() -> None:
    """Those below the persistence threshold, which `auto` makes ten times the hidden size."""
    assert buffers(3).persistent_params == rounded(2 * 50_000)
    assert buffers(3, options=(("stage3_param_persistence_threshold", "auto"),)).persistent_params == 0
    assert buffers(3, options=(("stage3_model_persistence_threshold", 10_000),)).persistent_params == 0


def test_stage_3_gathers_no_more_than_may_live() -> None:
    """What is used again within a billion parameters, and the next one: in front of the head, in it, behind it."""
    found = buffers(3)
    assert found.gathered_in_forward == rounded(2 * (LARGEST + 2 * 250_000_000))
    assert found.gathered_in_head == 2 * 4 * 250_000_000
    assert found.gathered_in_backward == rounded(2 * (LARGEST + 3 * 250_000_000))
    everything = buffers(3, options=(("stage3_max_reuse_distance", 30_000_000_000),))
    assert everything.gathered_in_head == rounded(2 * (P - 50_000))


def test_a_single_rank_gathers_nothing() -> None:
    """Its own partition is what it uses, unless that is on the host."""
    alone = {"layout": Layout(gpus_per_node=1, zero_stage=3)}
    found = buffers(3, **alone)
    assert found.gathered_in_forward == found.gathered_in_head == found.gathered_in_backward == 0
    assert buffers(3, **alone, parameter_offload="cpu").gathered_in_backward > 0


def test_stage_3_gathers_a_tensor_that_is_larger_than_what_may_live() -> None:
    """By itself: traced with tables of 5,003 and 3,001 rows and limits below them."""
    limits = (("stage3_max_live_parameters", 0), ("stage3_max_reuse_distance", 0), ("stage3_prefetch_bucket_size", 10))
    assert buffers(3, options=limits).gathered_in_forward == rounded(2 * LARGEST)


def test_another_communication_dtype_is_a_copy() -> None:
    """Of a bucket in fp32, or of the largest tensor, which is reduced alone. ZeRO-3's bucket has that dtype itself."""
    fp32 = (("communication_data_type", "fp32"),)
    plain, cast = buffers(2), buffers(2, options=fp32)
    assert cast.gradient_buckets == plain.gradient_buckets
    assert cast.copies_in_other_hooks - plain.copies_in_other_hooks == 2_000_000_000
    assert cast.copies_after_backward - plain.copies_after_backward == rounded(4 * LARGEST)
    assert buffers(3, options=fp32).from_start == 2 * buffers(3).from_start


def test_ranks_that_share_a_sequence_reduce_in_fp32() -> None:
    """``seq_parallel_communication_data_type`` is fp32 unless a config states another."""
    ring = Layout(gpus_per_node=8, data=4, context=2, zero_stage=2, shard_group=8)
    assert buffers(2, layout=ring).copies_in_other_hooks - buffers(2).copies_in_other_hooks == 2_000_000_000


def test_offloaded_fp32_sums_stay_on_the_gpu() -> None:
    """The partition in which they are summed is made on the accelerator (_build_compact_grad_partition_buffer)."""
    found = buffers(2, optimizer=Optimizer("adamw", "fused", "cpu"), options=(("grad_accum_dtype", "fp32"),))
    assert found.partition_gradients == rounded(4 * -(-P // 8))


def test_offloaded_gradients_go_through_one_buffer() -> None:
    """Of the largest tensor; nothing of the optimizer's step is left on the GPU."""
    found = buffers(2, optimizer=Optimizer("adamw", "fused", "cpu"))
    assert found.from_start == rounded(2 * LARGEST)
    assert found.partition_gradients == found.step_temporaries == 0


def test_a_norm_is_taken_of_each_tensors_part_in_fp64() -> None:
    """Traced with the engine (ZeRO-2, 8 ranks, a partition of 408,640 elements within a table): 3,269,120 bytes, more
    than the bf16 and fp32 copies of the partition that come behind it.
    """
    layout = Layout(gpus_per_node=8, data=8, zero_stage=2, shard_group=8)
    table = LocalTensor("embed_tokens.weight", (8 * 408_640,), trained=True)
    step = job(framework="deepspeed", recipe=DEEPSPEED.precisions.recipes["bf16-mixed"], layout=layout)
    assert engine_buffers(step, [[table]]).step_temporaries == 3_269_120


def test_the_fullest_partition_holds_whole_tensors() -> None:
    """Partitions of ten elements each: the second touches tensors of eight and nine, the others less."""
    assert fullest_partition([6, 8, 9, 7], 3) == 8 + 9
    assert fullest_partition([5, 5, 5, 5], 2) == 10
    assert fullest_partition([5, 5], 1) == 10
    assert fullest_partition([100, 1, 1], 4) == 102
    assert fullest_partition([], 4) == 0


def test_an_evaluation_gathers_what_may_live() -> None:
    """Logits are those of any pass without gradients; ZeRO-3 gathers parameters for it, ZeRO-2 has them."""
    passes = {}
    for stage in (2, 3):
        layout = Layout(gpus_per_node=8, data=8, zero_stage=stage, shard_group=8)
        step = job(framework="deepspeed", recipe=DEEPSPEED.precisions.recipes["bf16-mixed"], layout=layout)
        found = estimate(step._replace(evaluation=Evaluation(8, 0)), BIG_GPU, Overhead()).ranks[0].instants
        rests, passes[stage] = ({i.name: i.components_bytes for i in found}[name] for name in ("init", "evaluation"))
        assert passes[stage]["optimizer_states"] == rests["optimizer_states"]
        gathered = passes[stage].get("communication_buffers", 0) - rests.get("communication_buffers", 0)
        assert (gathered > 0) == (stage == 3)
    assert passes[2]["logits_and_loss"] == passes[3]["logits_and_loss"] > 0
