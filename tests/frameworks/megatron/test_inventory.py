"""The largest tensors and the formulas of a Megatron rank."""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import RankEstimate
from memcheck.frameworks.megatron.inventory import states
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.tensors import block_tensors, embedding_tensors, head_tensors
from memcheck.job.types import Checkpointing, Layout
from memcheck.models.types import Architecture
from tests.frameworks.megatron.models import deepseek_v2, grid, job, llama_8b


def worst(model: Architecture, layout: Layout, **changes: object) -> RankEstimate:
    """The rank with the highest peak, with its listing."""
    ranks = megatron_ranks(job(model, layout, **changes), model, inventory=True)
    return max(ranks, key=lambda r: r.peak.allocated_bytes)


def listed(rank: RankEstimate, component: str) -> int:
    """Bytes of the listed tensors of one component."""
    return sum(group.bytes for group in rank.largest if group.component == component)


OPTIONS = {
    "use_precision_aware_optimizer": True,
    "exp_avg_dtype": "bf16",
    "exp_avg_sq_dtype": "fp8",
    "main_grads_dtype": "bf16",
}


@pytest.mark.parametrize("layout", [grid(8), grid(8, zero_stage=0), grid(8, zero_stage=3), grid(8, tensor=2)])
@pytest.mark.parametrize("options", [{}, OPTIONS])
def test_the_listed_states_are_those_that_are_counted(layout: Layout, options: dict[str, object]) -> None:
    """Dtypes and shards of the listing are those of the totals, whatever the optimizer's options say."""
    model = llama_8b(1)
    case = job(model, layout, options=options, sequence_length=64)
    (rank,) = megatron_ranks(case, model)
    tensors = [*block_tensors(model.blocks[0][0], case, 4096), *embedding_tensors(model, case)]
    tensors += head_tensors(model, case, shares=False)
    at_rest = next(i for i in rank.instants if i.name == "optimizer").components_bytes
    for row in states(case):
        assert sum(row.bytes(t) for t in tensors) == pytest.approx(at_rest[row.component], rel=0.001)


def test_states_show_their_dtypes() -> None:
    """bf16 first and fp8 second moments are listed as such, with the bytes that these have: fp8 by rows and columns."""
    rank = worst(llama_8b(2), grid(1), options=OPTIONS, sequence_length=64)
    group = next(g for g in rank.largest if g.name.endswith("states of mlp.linear_fc1.weight"))
    assert group.shape == "[28672, 4096] bf16+fp8"
    assert group.bytes == 2 * 28672 * 4096 * 4
    formula = next(f for f in rank.formulas if f.component == "optimizer_states")
    assert "2 B (bf16) + 2 B (fp8)" in formula.numbers


def test_micro_batches_in_flight_are_listed() -> None:
    """The first of four stages keeps four micro-batches of two layers: so many copies of each saved tensor."""
    model = llama_8b(8)
    rank = worst(model, grid(8, pipeline=4), gradient_accumulation_steps=8, micro_batch_size=8)
    assert rank.pipeline_rank == 0
    copies = {g.name: g.copies for g in rank.largest if g.component == "activations"}
    assert copies["mlp.linear_fc1"] in (7, 8)
    assert listed(rank, "activations") <= rank.peak.components_bytes["activations"]
    formulas = [f.numbers for f in rank.formulas if f.component == "activations"]
    assert any("3 micro-batches in flight" in f for f in formulas)


def test_emptied_tensors_are_not_listed() -> None:
    """Keys that are made again in backward hold nothing at a peak in the loss, and are not among the largest."""
    model, kept = deepseek_v2(8), []
    for module in ("moe_act", "mla_up_proj"):
        options = {"recompute_modules": (module,), "moe_token_dispatcher_type": "alltoall"}
        keys = {"gradient_accumulation_steps": 8, "checkpointing": Checkpointing("selective")}
        one = job(model, grid(8, pipeline=4, expert=2), options=options, **keys)
        rank = megatron_ranks(one, model, inventory=True)[3]
        assert listed(rank, "activations") <= rank.peak.components_bytes["activations"]
        kept.append({g.name: g.copies for g in rank.largest}.get("key", 0))
    assert kept == [2, 0]


def test_experts_have_shards_of_their_own() -> None:
    """Experts on 8 ranks are not divided further, the other weights are: the formula says so."""
    rank = worst(deepseek_v2(), grid(8, expert=8, zero_stage=1))
    formula = next(f for f in rank.formulas if f.component == "optimizer_states")
    assert "elements / 8 ranks + " in formula.numbers
    assert "expert elements)" in formula.numbers
