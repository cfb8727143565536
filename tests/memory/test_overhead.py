"""From allocated to device bytes."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import ANY

import pytest

from memcheck.accounts.estimate import Pools
from memcheck.catalog.names import Gpu
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import Checkpointing, InferenceJob, Layout, Loss, Optimizer, Overhead, TrainingJob
from memcheck.memory.allocator import allocator_group, look_up, residuals, shares
from memcheck.memory.overhead import CONTEXT, CONTEXT_UNKNOWN, context_terms, library_terms, slack
from memcheck.memory.overhead_terms import CACHE, FRAGMENTATION, items
from tests.memory.jobs import BF16_PURE, llama_8b

GIB, MIB = 2**30, 2**20
H100 = Gpu("h100-80gb", 79 * GIB, "sm_90", nvlink_gbs=900)
T4 = Gpu("t4", 14 * GIB, "sm_75", nvlink_gbs=0)


def job(**fields: object) -> TrainingJob:
    """A training job on one GPU."""
    framework = FRAMEWORKS[str(fields.pop("framework", "pytorch"))]
    optimizer = Optimizer("adamw", "foreach")
    made = TrainingJob(llama_8b(1), framework, None, Layout(), BF16_PURE, optimizer, 1, 8, 1, loss=Loss())
    return made._replace(**fields)


def test_every_term_names_its_source() -> None:
    """No line of the overhead is unexplained, and together they are what lies between allocated and device."""
    layout = Layout(gpus_per_node=8, nodes=2, tensor=2, data=8, zero_stage=3, shard_group=8)
    terms = items(job(layout=layout), H100, Overhead(), 10 * GIB)
    assert all(t.source and t.bytes > 0 for t in terms)
    found = slack(job(layout=layout), H100, Overhead(), 10 * GIB)
    inside = [t for t in terms if t.component == "fragmentation"]
    assert [t.name for t in inside] == [FRAGMENTATION, CACHE]
    assert found.fragmentation == sum(t.bytes for t in inside)
    assert found.cache == inside[1].bytes
    assert found.context_and_nccl == sum(t.bytes for t in terms[2:])


def test_a_flat_policy_replaces_the_items() -> None:
    """``overhead: 10%`` is ten percent and nothing else."""
    (term,) = items(job(), H100, Overhead("flat", 0.1), 50 * GIB)
    assert (term.bytes, term.component) == (5 * GIB, "context_and_nccl")


@pytest.mark.parametrize("arch", [*CONTEXT, "sm_100", "gfx942", None])
def test_context_is_a_few_hundred_mib(arch: str | None) -> None:
    """Read on real cards; unknown architectures take the largest reading."""
    size = sum(n for _, n, _ in context_terms(Gpu("x", 80 * GIB, arch)))
    assert 100 * MIB < size < 700 * MIB
    if arch not in CONTEXT:
        assert size > CONTEXT_UNKNOWN[0] * MIB


def test_a_t4_context_includes_its_kernels() -> None:
    """It was read after the step, the others before."""
    assert [name for name, _, _ in context_terms(T4)] == ["driver context"]
    assert len(context_terms(H100)) == 2


def test_megatron_counts_its_own_workspaces() -> None:
    """Its ledger has cuBLAS's and TransformerEngine's; they are not added again."""
    assert library_terms(job(framework="megatron"), H100) == ()
    assert [size for _, size, _ in library_terms(job(), H100)] == [64 * MIB]
    assert [size for _, size, _ in library_terms(job(), T4)] == [2 * 8519680]


def test_cuda_graphs_cost_gigabytes() -> None:
    """More with a pipeline."""
    graphed = job(framework="megatron", options=(("cuda_graph_impl", "local"),))
    (term,) = library_terms(graphed, H100)
    (deeper,) = library_terms(graphed._replace(layout=Layout(pipeline=4, gpus_per_node=4)), H100)
    assert 0 < term[1] < deeper[1]


def test_allocator_groups_follow_what_the_allocator_sees() -> None:
    """Streams, recomputation on the default stream alone, and expandable segments."""
    sharded = Layout(gpus_per_node=8, data=8, zero_stage=3, shard_group=8)
    assert allocator_group(job()) == "one stream/plain/default"
    assert allocator_group(job(layout=sharded, expandable_segments=True)) == "sharded/expandable"
    titan = job(layout=sharded, framework="torchtitan")
    assert allocator_group(titan) == "sharded ends apart/default"
    compiled = titan._replace(compile=True, expandable_segments=True)
    assert allocator_group(compiled) == "sharded ends apart, compiled/expandable"
    own_passes = compiled._replace(options=(("module", "graph_trainer.llama3"),))
    assert allocator_group(own_passes) == "sharded ends apart/expandable"
    assert allocator_group(job(checkpointing=Checkpointing("full"))) == "one stream/recompute/default"
    assert allocator_group(job()._replace(sequences="padded")) == "one stream/lengths vary/plain/default"
    assert allocator_group(job(framework="megatron")) == "megatron/default"
    assert allocator_group(InferenceJob(llama_8b(1), Layout(), 1, 1, "bf16", "bf16")) == "serving"


def test_expandable_segments_fragment_less() -> None:
    """In every kind of step that was replayed."""
    tables = residuals()
    for kind in ("one stream/plain", "one stream/recompute", "sharded", "sharded ends apart"):
        default, expandable = tables.reserved[f"{kind}/default"], tables.reserved[f"{kind}/expandable"]
        assert expandable.median < default.median, kind


def test_lengths_that_vary_are_seen_and_not_needed() -> None:
    """With default segments the cache of other lengths is kept, and returned when it is asked for."""
    usual, varying = shares(job()), shares(job()._replace(sequences="padded"))
    assert varying.held.median > usual.held.median
    assert varying.stuck.median == usual.stuck.median
    expandable = job(expandable_segments=True)
    assert allocator_group(expandable._replace(sequences="padded")) == allocator_group(expandable)


def test_cache_does_not_fail_a_plan() -> None:
    """What the allocator keeps only while there is room is no more than the room, and apart from what it needs."""
    sharded = job(
        layout=Layout(gpus_per_node=8, data=8, zero_stage=3, shard_group=8),
        checkpointing=Checkpointing("full"),
        expandable_segments=True,
    )
    roomy, full, apart = 30 * GIB, 70 * GIB, 8 * GIB
    stuck, held, *_ = shares(sharded)
    assert slack(sharded, H100, Overhead(), roomy).fragmentation == int(roomy * held.median) - roomy
    pools = int((roomy + apart) * held.median)
    assert slack(sharded, H100, Overhead(), roomy, pools=Pools(apart=apart)).fragmentation == pools - roomy
    found = slack(sharded, H100, Overhead(), full, pools=Pools(apart=apart))
    assert (full + apart) * held.median - full > found.fragmentation >= int(full * (stuck.median - 1))
    assert found.fragmentation - found.cache == int(full * (stuck.median - 1))
    assert full + found.fragmentation + found.context_and_nccl == H100.memory_bytes


def test_what_cannot_be_returned_always_counts() -> None:
    """A step whose live tensors fill the GPU still needs the allocator's fixed share."""
    _, tight = look_up(residuals().tight, "one stream/plain/default")
    assert slack(job(), H100, Overhead(), 79 * GIB) == (int(79 * GIB * (tight.median - 1)), ANY, 0)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("mode", ["none", "full"])
def test_what_the_allocator_holds_grows_with_the_load(expandable: bool, stage: int, mode: str) -> None:
    """A step of a MiB more: what is held never falls, never jumps, and only its cache gives way as the GPU fills."""
    plan = job(
        layout=Layout(gpus_per_node=8, data=8, zero_stage=stage, shard_group=8),
        checkpointing=Checkpointing(mode),
        expandable_segments=expandable,
    )
    loads = range(20 * GIB, 90 * GIB, 64 * MIB)
    found = [slack(plan, H100, Overhead(), load) for load in loads]
    held = [load + s.fragmentation for load, s in zip(loads, found, strict=True)]
    stuck = [s.fragmentation - s.cache for s in found]
    for series in (held, stuck):
        steps = [b - a for a, b in pairwise(series)]
        assert min(steps) >= 0
        assert max(steps) < 2 * 64 * MIB
    assert found[0].cache > 0
    assert found[-1].cache == 0


@pytest.mark.parametrize("stage", [0, 3])
def test_less_is_stuck_in_the_optimizer(stage: int) -> None:
    """A step that is highest there needs no less than before it, and is as full as any other once that is as high."""
    plan = job(layout=Layout(gpus_per_node=8, data=8, zero_stage=stage, shard_group=8))
    peak = 60 * GIB
    befores = range(30 * GIB, peak + GIB, GIB)
    needs = [peak + stuck_bytes(plan, peak, Pools(before=before, lists=peak, unfilled=0)) for before in befores]
    usual = stuck_bytes(plan, peak, Pools(unfilled=0))
    assert needs == sorted(needs)
    assert 0 <= needs[0] - peak < usual / 2
    assert needs[-1] - peak == usual
    assert all(need >= b + stuck_bytes(plan, b, Pools(unfilled=0)) for b, need in zip(befores, needs, strict=True))


def test_streams_keep_from_each_other_what_they_hold_at_most() -> None:
    """A large batch leaves beside FSDP2's streams no more than it would on one, and all that those have held."""
    layout = Layout(gpus_per_node=8, data=8, zero_stage=3, shard_group=8)
    sharded, alone, live = job(layout=layout), job(), 400 * GIB
    rests = Pools(unfilled=0)
    on_one = stuck_bytes(alone, live, rests)
    assert stuck_bytes(sharded, live, rests._replace(others=3 * GIB)) in range(
        on_one + 3 * GIB - 2, on_one + 3 * GIB + 3
    )
    usual = stuck_bytes(sharded, live, rests)
    assert on_one + 3 * GIB < usual == stuck_bytes(sharded, live, rests._replace(others=100 * GIB))


def stuck_bytes(plan: TrainingJob, allocated: int, pools: Pools) -> int:
    """What cannot be returned on a GPU with room."""
    found = slack(plan, H100, Overhead(), allocated, pools=pools)
    return found.fragmentation - found.cache


def test_what_segments_leave_is_needed() -> None:
    """Where it is known it comes on top of a share that was made without it."""
    pools = Pools(unfilled=3 * GIB, unfilled_most=5 * GIB)
    assert stuck_bytes(job(), 40 * GIB, pools) - stuck_bytes(job(), 40 * GIB, Pools(unfilled=0)) in range(
        3 * GIB - 2, 3 * GIB + 3
    )
