"""The interval of device bytes, and the tables behind it."""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import Pools
from memcheck.catalog.names import find_gpu
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import InferenceJob, Layout, Lora, Loss, Optimizer, TrainingJob
from memcheck.memory.allocator import (
    ENOUGH,
    SMALL_BYTES,
    Residuals,
    Spread,
    allocator_group,
    blocks_group,
    look_up,
    residuals,
    shares,
    shares_of,
)
from memcheck.memory.interval import Kinds, PlanFigures, ends, error_group
from memcheck.memory.overhead import NOTHING_OUTSIDE, OutsideBytes
from memcheck.memory.overhead_terms import interval_basis, intervals
from tests.memory.jobs import BF16_PURE, llama_8b

GIB = 2**30
KIND = Kinds("family/kind", "kind")
AROUND = OutsideBytes(context=GIB, libraries=0, communicators=GIB)
"""Two GiB outside the allocator."""


def job(**fields: object) -> TrainingJob:
    """A training job on one GPU."""
    framework = FRAMEWORKS[str(fields.pop("framework", "pytorch"))]
    optimizer = Optimizer("adamw", "foreach")
    made = TrainingJob(llama_8b(1), framework, None, Layout(), BF16_PURE, optimizer, 1, 8, 1, loss=Loss())
    return made._replace(**fields)


def tables(error: Spread, free: Spread, tight: Spread) -> Residuals:
    """One group in each table, and nothing known of what is outside the allocator or beyond the largest block."""
    stuck = {KIND.allocator: tight}
    return Residuals({KIND.errors: error}, {KIND.allocator: free}, stuck, {}, {}, {}, {}, stuck)


def live(allocated: float, outside: OutsideBytes = NOTHING_OUTSIDE) -> PlanFigures:
    """So many GiB of live tensors."""
    return PlanFigures(int(allocated * GIB), outside)


EXACT = Spread(100, 1.0, 1.0, 1.0)


def test_without_errors_the_intervals_are_what_is_held() -> None:
    """What cannot be returned on top of the need, the usual share of the allocator on top of what is seen."""
    found = ends(tables(EXACT, Spread(100, 1.1, 1.1, 1.1), EXACT), KIND, live(50, AROUND), None)
    assert found.needed == (52 * GIB, 52 * GIB)
    assert found.seen == pytest.approx((57 * GIB, 57 * GIB), abs=2)


def test_errors_widen_both_ends() -> None:
    """What is too high lowers the lower end, what is too low raises the upper one."""
    low, high = ends(tables(Spread(100, 0.9, 1.0, 1.2), EXACT, EXACT), KIND, live(50), None).needed
    assert low == pytest.approx(45 * GIB)
    assert high == pytest.approx(60 * GIB)


def test_independent_errors_add_in_quadrature() -> None:
    """3 % of allocated and 4 % of the allocator are 5 % together."""
    wide = Spread(100, 1.0, 1.0, 1.04)
    found = ends(tables(Spread(100, 1.0, 1.0, 1.03), wide, wide), KIND, live(100), None)
    assert found.needed[1] == found.seen[1] == pytest.approx(105 * GIB, rel=1e-6)


def test_small_jobs_have_errors_of_constant_size() -> None:
    """A difference counts relative to a few GiB at least."""
    _, high = ends(tables(Spread(100, 1.0, 1.0, 1.05), EXACT, EXACT), KIND, live(1), None).needed
    assert high == pytest.approx(GIB + 0.05 * SMALL_BYTES)


def test_cache_widens_what_is_seen_alone() -> None:
    """Free segments are returned: the need does not count them, and nobody sees more than the GPU has."""
    made = tables(EXACT, Spread(100, 1.0, 1.2, 1.5), Spread(100, 1.0, 1.01, 1.02))
    for capacity in (None, 80 * GIB):
        assert ends(made, KIND, live(60), capacity).needed == pytest.approx((60 * GIB, 60 * GIB * 1.02))
    assert ends(made, KIND, live(60), None).seen[1] == pytest.approx(90 * GIB)
    assert ends(made, KIND, live(60), 80 * GIB).seen[1] == 80 * GIB
    assert ends(made, KIND, live(79), 80 * GIB).seen[1] == pytest.approx(79 * GIB * 1.02)


def test_no_less_is_seen_than_what_cannot_be_returned() -> None:
    """A wide sample of what steps hold does not reach below the least that they need."""
    made = tables(EXACT, Spread(100, 1.0, 1.2, 1.5), Spread(100, 1.09, 1.1, 1.2))
    found = ends(made, KIND, live(50), None)
    assert found.seen[0] == found.needed[0] == pytest.approx(54.5 * GIB)


def test_the_need_is_nowhere_below_live_tensors() -> None:
    """No allocator holds less than what is live, whatever a small sample's tail says."""
    made = tables(EXACT, Spread(9, 0.8, 1.2, 1.5), Spread(9, 0.9, 1.05, 1.1))
    assert ends(made, KIND, live(50), None).needed[0] == 50 * GIB


def test_what_cannot_be_returned_is_no_more_than_what_is_held() -> None:
    """A kind whose need borrows a neighbour's spread is held to its own reserved figures."""
    made = tables(EXACT, Spread(20, 1.0, 1.04, 1.1), Spread(20, 1.0, 1.09, 1.3))
    stuck, held, *_ = shares_of(made, KIND[1])
    assert (stuck.median, stuck.high) == (held.median, held.high) == (1.04, 1.1)


def test_readings_outside_the_allocator_widen_it() -> None:
    """Contexts were seen to take less than their formulas, communicators more; workspaces are what they are."""
    seen = {"context": Spread(3, 0.5, 1.0, 1.0), "communicators": Spread(3, 1.0, 1.1, 1.5)}
    made = tables(EXACT, EXACT, EXACT)._replace(outside=seen)
    around = OutsideBytes(context=2 * GIB, libraries=GIB, communicators=2 * GIB)
    assert ends(made, KIND, live(50, around), None).needed == (54 * GIB, 56 * GIB)


def test_a_context_that_was_read_is_known_better_than_that_of_another_gpu_of_its_architecture() -> None:
    """An L4 has half of an RTX 6000 Ada's."""
    seen = {"context": Spread(1, 0.5, 0.5, 1.0), "context, read": Spread(5, 0.9, 1.0, 1.0)}
    made = tables(EXACT, EXACT, EXACT)._replace(outside=seen)
    around = OutsideBytes(context=10 * GIB, libraries=0, communicators=0)
    assert ends(made, KIND, live(50, around), None).needed == (55 * GIB, 60 * GIB)
    assert ends(made, KIND, live(50, around._replace(read=True)), None).needed == (59 * GIB, 60 * GIB)


def test_communicators_of_cards_without_access_to_each_other_may_lie_in_host_memory() -> None:
    """All but their kernels: that much less may be needed, and no less at the upper end."""
    made = tables(EXACT, EXACT, EXACT)
    around = OutsideBytes(context=GIB, libraries=0, communicators=3 * GIB, in_host=2 * GIB)
    assert ends(made, KIND, live(50, around), None).needed == (52 * GIB, 54 * GIB)
    assert [find_gpu(name).peer_access for name in ("rtx-4090", "rtx-6000-ada", "h100-80gb")] == [False, True, True]


@pytest.mark.parametrize(
    ("kind", "cases", "largest", "high"),
    [
        ("known", ENOUGH, 5, 1.12),
        ("known", ENOUGH, 20, 1.42),
        ("known/adapters", ENOUGH, 20, 1.3),
        ("known", ENOUGH - 1, 5, 1.3),
        ("known", ENOUGH, 0, 1.3),
        ("", ENOUGH, 5, 1.3),
    ],
)
def test_a_need_ends_one_largest_block_above_what_is_live(kind: str, cases: int, largest: int, high: float) -> None:
    """With a remainder, where enough steps of the kind were replayed; with adapters no higher than their share."""
    made = tables(EXACT, Spread(20, 1.0, 1.1, 1.5), Spread(20, 1.0, 1.05, 1.3))
    made = made._replace(beyond={kind or "known": Spread(cases, 1.0, 1.0, 1.02)})
    found = ends(made, KIND._replace(remainder=kind), live(50)._replace(pools=Pools(largest=largest * GIB)), None)
    assert found.needed[1] == pytest.approx(50 * GIB * high)


@pytest.mark.parametrize(
    ("group", "cases", "low", "high"), [("known", ENOUGH, 1.03, 1.11), ("known", 7, 1.0, 1.12), ("", ENOUGH, 1.0, 1.12)]
)
def test_a_share_of_the_largest_block_bounds_both_ends(group: str, cases: int, low: float, high: float) -> None:
    """A tenth of what is live, of which 0.3 to 1.1 were seen to stay; not from fewer cases, nor of another kind."""
    made = tables(EXACT, Spread(20, 1.0, 1.1, 1.5), Spread(20, 1.0, 1.05, 1.3))
    made = made._replace(beyond={"known": Spread(20, 1.0, 1.0, 1.02)}, blocks={"known": Spread(cases, 1.3, 1.6, 2.1)})
    kind = KIND._replace(remainder="known", blocks=group)
    found = ends(made, kind, live(50)._replace(pools=Pools(largest=5 * GIB)), None)
    assert found.needed == (pytest.approx(50 * GIB * low), pytest.approx(50 * GIB * high))


@pytest.mark.parametrize(
    ("fields", "stage", "group"),
    [
        ({}, 3, "sharded"),
        ({}, 2, ""),
        ({"method": "lora", "lora": Lora()}, 3, ""),
        ({"expandable_segments": True}, 3, ""),
        ({"framework": "deepspeed"}, 3, ""),
    ],
)
def test_steps_that_gather_twice_leave_a_share_of_their_largest_block(
    fields: dict[str, object], stage: int, group: str
) -> None:
    """Full steps of FSDP2 with default segments; not those that stay gathered, train adapters or have an engine."""
    sharded = Layout(gpus_per_node=8, data=8, zero_stage=stage, shard_group=8)
    assert blocks_group(job(layout=sharded, **fields)) == group


@pytest.mark.parametrize(
    ("fields", "group"),
    [
        ({}, "sharded/default"),
        ({"method": "lora", "lora": Lora()}, "sharded/adapters/default"),
        ({"fsdp_version": 1}, "sharded, FSDP1/default"),
        ({"fsdp_version": 1, "framework": "deepspeed"}, "sharded/default"),
    ],
)
def test_kinds_of_sharded_steps(fields: dict[str, object], group: str) -> None:
    """Adapters keep less, FSDP1 holds more than FSDP2; DeepSpeed is neither."""
    sharded = Layout(gpus_per_node=8, data=8, zero_stage=3, shard_group=8)
    assert allocator_group(job(layout=sharded, **fields)) == group


def test_real_intervals_hold_the_prediction() -> None:
    """The need's ends lie around its figure, for every kind of plan."""
    sharded = Layout(gpus_per_node=8, data=8, zero_stage=3, shard_group=8)
    jobs = [
        job(),
        job(layout=sharded),
        job(framework="deepspeed", layout=sharded),
        job(framework="megatron"),
        job(compile=True),
        job(method="qlora", lora=Lora()),
        InferenceJob(llama_8b(1), Layout(), 1, 1, "bf16", "bf16"),
    ]
    for each in jobs:
        needed, seen = intervals(each, live(40, AROUND), None)
        stuck, held, *_ = shares(each)
        assert needed[0] < 40 * GIB * stuck.median + 2 * GIB < needed[1], error_group(each)
        assert seen[0] < 40 * GIB * held.median + 2 * GIB < seen[1], error_group(each)
        assert needed[1] <= seen[1], error_group(each)
        name, n = interval_basis(each)
        assert name
        assert n >= 1


def test_frameworks_share_a_family_where_they_share_code() -> None:
    """nanotron's errors are Megatron's; the Trainer has published readings of its own."""
    assert error_group(job(framework="nanotron")) == error_group(job(framework="megatron"))
    assert (error_group(job(framework="huggingface")), error_group(job())) == ("huggingface/single", "pytorch/single")
    assert error_group(job(framework="torchtitan")) == "torchtitan/dense"
    assert error_group(job(compile=True)) == "compiled/pytorch"


def test_few_cases_borrow_from_the_widest_neighbour() -> None:
    """Of the same family first, and the name says so."""
    table = {
        "a/many": Spread(40, 0.9, 1.0, 1.2),
        "a/few": Spread(ENOUGH - 1, 0.99, 1.0, 1.01),
        "b/many": Spread(40, 0.5, 1.0, 2.0),
    }
    assert look_up(table, "a/many") == ("a/many", table["a/many"])
    assert look_up(table, "a/few") == ("a/few widened by a/many", Spread(ENOUGH - 1, 0.9, 1.0, 1.2))
    assert look_up(table, "a/none") == ("a/many", table["a/many"])
    assert look_up(table, "c/none") == ("b/many", table["b/many"])


def test_compiled_steps_stand_apart() -> None:
    """Their errors are those of not knowing what is fused; others do not borrow them."""
    table = {"a/many": Spread(40, 0.9, 1.0, 1.2), "compiled/a": Spread(40, 0.5, 1.0, 2.0)}
    assert look_up(table, "b/none") == ("a/many", table["a/many"])
    assert look_up(table, "compiled/b") == ("compiled/a", table["compiled/a"])


def test_stored_tables_are_in_order() -> None:
    """Lower end, middle and upper end of every group."""
    found = residuals()
    for table in found:
        for name, spread in table.items():
            assert 0 < spread.low <= spread.median <= spread.high, name
    assert min(spread.high for spread in found.outside.values()) >= 1


@pytest.mark.parametrize(
    ("components", "group"),
    [(None, "compiled/torchtitan"), (("model",), "compiled/torchtitan"), (("loss",), "torchtitan/dense")],
)
def test_a_step_counts_as_compiled_when_its_model_is(components: tuple[str, ...] | None, group: str) -> None:
    """torchtitan's compile.components: both, unless stated."""
    options = (("components", components),) if components else ()
    assert error_group(job(framework="torchtitan", compile=True, options=options)) == group


def test_the_graph_trainer_has_errors_of_its_own() -> None:
    """Its passes decide what is kept, not the trainer's configuration."""
    each = job(framework="torchtitan", compile=True, options=(("module", "graph_trainer.llama3"),))
    assert error_group(each) == "compiled/graph_trainer"
