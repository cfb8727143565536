"""What context parallelism exchanges, by whose code runs it, and what attention hides of it."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import find_gpu
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention
from memcheck.timing.exchanges import context_kind, context_seconds
from memcheck.timing.layer import LayerCost
from memcheck.timing.model import parts_of, shape_of
from memcheck.timing.rates import Rates, all_to_all, exposed, gather, group, rates_of, send
from memcheck.timing.shape import merge_traffic
from tests.timing.plans import job, timed

LONG = {"sequence_length": 131072, "context": 4}


def parts(one: TrainingJob) -> tuple[LayerCost, Rates]:
    """The cost of a layer, and the rates it was made with."""
    r = rates_of(find_gpu("h100-80gb"), "bf16", 8, fp8=False, engine_attention=one.framework.transformer_engine)
    assert isinstance(one.architecture, Architecture)
    return parts_of(one.architecture, shape_of(one), r).layer_costs[0], r


def test_whose_code_runs() -> None:
    """Nothing on one rank; Ulysses under DeepSpeed and as Megatron's ``a2a``; rings of torch and of the engine."""
    kinds = [
        context_kind(job(framework=framework, context=degree, options=options))
        for framework, degree, options in (
            ("megatron", 1, {}),
            ("megatron", 2, {}),
            ("megatron", 2, {"cp_comm_type": "a2a"}),
            ("megatron", 2, {"cp_comm_type": "all_gather"}),
            ("torchtitan", 2, {}),
        )
    ]
    assert kinds == ["", "engine", "ulysses", "gather", "whole"]
    assert context_kind(job(context=2, framework_version="0.2.2")) == "torch"


def test_torchtitans_main_branch_gathers_once() -> None:
    """Keys and values ahead, the sum of their gradients back: no ring, and nothing to merge."""
    one = job(**LONG)
    cost, r = parts(one)
    once = gather(group(r, 4, 1), 4 * cost.kv_bytes)
    assert context_seconds(one, cost, "whole", r) == (once, once)
    ring = timed(**LONG, framework_version="0.2.2")
    assert ring.hbm_seconds > timed(**LONG).hbm_seconds


def test_a_compiled_ring_of_torch_waits_for_every_exchange() -> None:
    """Traced collectives are waited for where they start: one gather ahead; back another, and the fp32 gradients of
    keys and values to every rank and home. In eager mode attention hides most of it.
    """
    one = job(compile=True, **LONG)
    cost, r = parts(one)
    g = group(r, 4, 1)
    ahead, back = context_seconds(one, cost, "torch", r)
    assert ahead == gather(g, 4 * cost.kv_bytes)
    assert back == pytest.approx(ahead + 4 * send(g, 2 * cost.kv_bytes))
    eager = context_seconds(one._replace(compile=False), cost, "torch", r)
    assert eager[0] < ahead / 4
    assert eager[1] < back / 2


def test_the_engines_ring_hides_behind_attention() -> None:
    """Keys and values behind the attention kernel, and twice as much behind that of the backward pass."""
    one = job(framework="megatron", **LONG)
    cost, r = parts(one)
    g = group(r, 4, 1)
    assert context_seconds(one, cost, "engine", r) == (
        exposed(3 * send(g, cost.kv_bytes), cost.attention_seconds, r.collective_sm_share),
        exposed(3 * send(g, 2 * cost.kv_bytes), cost.attention_backward_seconds, r.collective_sm_share),
    )


def test_what_is_gathered_at_once_is_exposed() -> None:
    """``all_gather``: once ahead; again in backward, and the gradients' scatter. ``a2a``: two all-to-alls each way."""
    one = job(framework="megatron", **LONG)
    cost, r = parts(one)
    g = group(r, 4, 1)
    once = gather(g, 4 * cost.kv_bytes)
    assert context_seconds(one, cost, "gather", r) == (once, 2 * once)
    turned = 2 * all_to_all(g, 2 * cost.kv_bytes)
    assert context_seconds(one, cost, "ulysses", r) == (turned, turned)


def test_the_engines_ring_merges_in_sixteen_bits() -> None:
    """Per token: keys and values put together and the first output scaled, 6 bytes for three quarters of each other
    block; torch's, in fp32, moves more, and a gather nothing.
    """
    llama = job().architecture
    assert isinstance(llama, Architecture)
    mixer = llama.blocks[0][0].mixer
    assert isinstance(mixer, Attention)
    ahead, back = merge_traffic("engine", mixer, 4, tensor=1, fused=True, repeats_kv_heads=False)
    queries, kept = 4096, 2048
    assert ahead == 4 * kept + queries * (4 + 4.5 * 3)
    assert back == kept * (10 + 4.5 * 3) + queries * (4 + 4.5 * 3)
    torch = merge_traffic("torch", mixer, 4, tensor=1, fused=True, repeats_kv_heads=False)
    assert torch[0] > ahead
    assert torch[1] > back
    assert merge_traffic("gather", mixer, 4, tensor=1, fused=True, repeats_kv_heads=False) == (0.0, 0.0)


def test_only_what_recomputes_attention_goes_around_again() -> None:
    """Recomputing feed-forward layers exchanges no keys; recomputing core attention does."""
    plain, mlp, core = (
        timed(framework="megatron", activation_checkpointing=mode, options={"cp_comm_type": "a2a"}, **LONG).exchanges
        for mode in ("none", {"mode": "selective", "modules": ["mlp"]}, {"mode": "selective", "modules": ["core_attn"]})
    )
    assert mlp.context == plain.context
    assert core.context == pytest.approx(1.5 * plain.context)
