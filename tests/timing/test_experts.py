"""Mixtures of experts and latent attention under Megatron: dispatchers, latents, and what is recomputed of them."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.catalog.names import find_gpu
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.timing.exchanges import expert_seconds
from memcheck.timing.layer import LayerCost
from memcheck.timing.model import parts_of, shape_of
from memcheck.timing.rates import Rates, gather, group, rates_of
from memcheck.timing.shape import products, recomputed_traffic
from memcheck.timing.tensor_parallel import Half, TensorWires, tensor_seconds, tensor_wires
from tests.timing.plans import job, timed


def last(one: TrainingJob) -> tuple[LayerCost, Rates]:
    """The cost of the last kind of layer, and the rates it was made with."""
    r = rates_of(find_gpu("h100-80gb"), "bf16", 8, fp8=False, engine_attention=one.framework.transformer_engine)
    assert isinstance(one.architecture, Architecture)
    return parts_of(one.architecture, shape_of(one), r).layer_costs[-1], r


def deepseek(framework: str = "megatron", **keys: Any) -> TrainingJob:
    """DeepSeek-V3 on 64 GPUs."""
    return job("deepseek-v3", 64, framework, sequence_length=4096, **keys)


def test_megatrons_default_dispatcher_gathers_all_tokens() -> None:
    """Every rank's hidden states are gathered, and as many results are scattered; in fp32 if the router is."""
    one = job("mixtral-8x7b", 8, "megatron", expert=8)
    cost, r = last(one)
    g = group(r, 8, 1)
    tokens = 8 * 8192 * 4096 * 2
    assert expert_seconds(one, cost, r) == gather(g, tokens)
    wide = job("mixtral-8x7b", 8, "megatron", expert=8, options={"moe_router_dtype": "fp32"})
    assert expert_seconds(wide, cost, r) == (gather(g, tokens) + gather(g, 2 * tokens)) / 2


def test_gathering_does_not_depend_on_who_is_busy() -> None:
    """Uneven routing loads the experts, not the gather; an all-to-all waits for the busiest rank."""
    even, uneven = (job("mixtral-8x7b", 8, "megatron", expert=8, expert_imbalance=n) for n in (1.0, 2.0))
    assert expert_seconds(uneven, *last(uneven)) == pytest.approx(expert_seconds(even, *last(even)))


def test_more_experts_than_choices_are_cheaper_to_reach_than_to_gather() -> None:
    """Two of eight experts in an all-to-all over eight ranks: a quarter of the bytes."""
    gathered, sent = (
        timed("mixtral-8x7b", 8, "megatron", expert=8, options={"moe_token_dispatcher_type": kind}).exchanges.expert
        for kind in ("allgather", "alltoall")
    )
    assert 3 < gathered / sent < 5


def test_tensor_ranks_of_megatron_exchange_latents() -> None:
    """Forward gathers 1536 + 512 + 64 of 7168 channels, backward scatters their gradients; results are whole."""
    one = deepseek(tensor=2)
    size = 4096.0 * 7168 * 2
    r = rates_of(find_gpu("h100-80gb"), "bf16", 8, engine_attention=True, fp8=False)
    w = tensor_wires(one, size, 2, r)
    assert w.latent_seconds == gather(group(r, 2, 1), size * (1536 + 512 + 64) / 7168)
    assert tensor_wires(deepseek("torchtitan", tensor=2), size, 2, r).latent_seconds == w.gather_seconds


def test_latents_save_a_gather_and_a_scatter() -> None:
    """Of one half's two pairs, one gather and one scatter are narrow; up-projections recomputed alone gather again."""
    w = TensorWires(2, gather_seconds=7.0, scatter_seconds=7.0, latent_seconds=2.0)
    assert tensor_seconds(w, (Half(),), 1, 0.0) == 28.0
    assert tensor_seconds(w, (Half(latents="kept"),), 1, 0.0) == 18.0
    assert tensor_seconds(w, (Half(latents="kept"),), 1, 1.0) == 27.0
    assert tensor_seconds(w, (Half(latents="again"),), 1, 0.0) == 20.0
    whole = TensorWires(2, 0.0, 10.0, latent_seconds=3.0)
    assert tensor_seconds(whole, (Half(latents="kept"),), 1, 0.0) == 13.0


def test_torchtitan_compresses_all_tokens_on_every_tensor_rank() -> None:
    """Megatron's ranks compress their own tokens; torchtitan's gather first."""
    rows = {}
    for framework in ("megatron", "torchtitan"):
        one = deepseek(framework, tensor=2)
        assert isinstance(one.architecture, Architecture)
        block = one.architecture.blocks[-1][0]
        rows[framework] = {p.name: p.tokens for p in products(block, shape_of(one), trained=True)}
    down = next(name for name in rows["megatron"] if name.endswith("q_a_proj"))
    assert rows["megatron"][down] == 2048
    assert rows["torchtitan"][down] == 4096


def test_recomputed_modules_move_what_they_moved() -> None:
    """Two norms of 4 bytes a channel, the experts' activation, and for whole experts what is gathered and weighted."""
    one = deepseek()
    assert isinstance(one.architecture, Architecture)
    block = one.architecture.blocks[-1][0]
    norms = recomputed_traffic(block, 7168, ("layernorm",), fused=True)
    assert (norms.stream[0], norms.inner[0], norms.experts[0]) == (2 * 4 * 7168, 0.0, 0.0)
    activation = recomputed_traffic(block, 7168, ("moe_act",), fused=True)
    assert (activation.stream[0], activation.experts[0]) == (0.0, 6 * 2048)
    whole = recomputed_traffic(block, 7168, ("moe",), fused=True)
    assert whole.experts[0] == 6 * 2048 + 8 * 7168
    assert whole.inner[0] == 6 * 2048
    assert recomputed_traffic(block, 7168, ("mla_up_proj",), fused=True).inner[0] > 0


def test_norms_that_a_linear_layer_computes_are_not_recomputed() -> None:
    """Transformer Engine's layers compute a dense model's norms; without it they are modules of their own."""
    one = job(framework="megatron")
    assert isinstance(one.architecture, Architecture)
    block = one.architecture.blocks[0][0]
    assert recomputed_traffic(block, 4096, ("layernorm",), fused=True).stream[0] == 0.0
    assert recomputed_traffic(block, 4096, ("layernorm",), fused=False).stream[0] == 2 * 4 * 4096


def test_keeping_an_input_in_fp8_costs_two_casts() -> None:
    """16 bits read and 8 written behind the activation function, and back before its gradient."""
    keys = {"expert": 64, "precision": "fp8-mixed"}
    wide, narrow = (
        last(deepseek(options={"activation_func_fp8_input_store": keep}, **keys))[0] for keep in (False, True)
    )
    r = last(deepseek(**keys))[1]
    elements = 4096 * (8 * 2 * 2048 + 2 * 2048)
    assert narrow.forward.memory_seconds - wide.forward.memory_seconds == pytest.approx(3 * elements / r.hbm_bandwidth)
    assert narrow.input_gradients.memory_seconds - wide.input_gradients.memory_seconds == pytest.approx(
        3 * elements / r.hbm_bandwidth
    )
