"""What Megatron's transformer layer keeps, in closed form and as the paper counts it."""

from __future__ import annotations

import pytest

from tests.frameworks.megatron.models import MIB, deepseek_v2, gpt, layer_curve, llama_8b, setting
from tests.memory.textbook import layer_activations

STATISTICS = 16
"""Bytes per token of two LayerNorms' fp32 mean and rstd, which the paper leaves out."""
LOCAL = {"transformer_impl": "local"}


@pytest.mark.parametrize(
    ("tensor", "parallel", "recompute"),
    [
        (1, False, "none"),
        (1, False, "selective"),
        (2, False, "none"),
        (4, False, "selective"),
        (2, True, "none"),
        (8, True, "none"),
        (8, True, "selective"),
        (4, True, "full"),
        (1, False, "full"),
    ],
)
def test_an_unfused_layer_with_dropout_is_the_papers(tensor: int, parallel: bool, recompute: str) -> None:
    """Korthikanti's s b h (34 + 5 a s / h) and its parallel and recomputed forms, to the byte."""
    s, b, h, a = 2048, 2, 4096, 32
    options: dict[str, object] = dict(LOCAL)
    if recompute == "selective":
        options |= {"recompute_granularity": "selective"}
    config = setting(
        h, batch=b, sequence=s, attention="local", tensor_parallel=tensor, sequence_parallel=parallel, options=options
    )
    found = layer_curve(gpt(hidden=h, heads=a), config, recompute=recompute == "full").saved_bytes
    want = layer_activations(s, b, h, a, tensor=tensor, sequence_parallel=parallel, recompute=recompute)
    if recompute == "full" and parallel:
        want //= tensor  # the paper's table leaves 2 s b h whole; the residual stream is divided
    extra = 0 if recompute == "full" else STATISTICS * s * b // (tensor if parallel else 1)
    assert found == want + extra


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_a_llama_layer_under_transformer_engine(tensor: int) -> None:
    """8 h + 4 q + 4 k + 6 f + 8 + 4 a bytes per token, all divided by the tensor ranks under sequence parallelism.

    Two norms keep input and output, attention q, k, v and its output, the MLP the input and output of its activation.
    """
    h, q, k, f, a, tokens = 4096, 4096, 1024, 14336, 32, 8192
    config = setting(h, sequence=tokens, tensor_parallel=tensor, sequence_parallel=tensor > 1)
    found = layer_curve(llama_8b(), config).saved_bytes
    assert found == tokens * (8 * h + 4 * q + 4 * k + 6 * f + 8 + 4 * a) // tensor


def test_tensor_parallelism_alone_leaves_the_norms_whole() -> None:
    """Without sequence parallelism inputs and outputs of both norms stay undivided."""
    h, q, k, f, a, tp, tokens = 4096, 4096, 1024, 14336, 32, 4, 8192
    found = layer_curve(llama_8b(), setting(h, sequence=tokens, tensor_parallel=tp)).saved_bytes
    assert found == tokens * (8 * h + 8) + tokens * (4 * q + 4 * k + 6 * f + 4 * a) // tp


def test_flash_attention_copies_batches() -> None:
    """FlashAttention wants the batch first: with two sequences its output is kept before and after the transposition."""
    h, tokens = 4096, 8192
    fused = layer_curve(llama_8b(), setting(h, batch=2, sequence=tokens // 2)).saved_bytes
    flash = layer_curve(llama_8b(), setting(h, batch=2, sequence=tokens // 2, attention="flash")).saved_bytes
    assert flash - fused == 2 * h * tokens


def test_ulysses_keeps_the_exchanged_output_too() -> None:
    """cp_comm_type a2a: the output is kept before the all-to-all for attention, after it for the projection."""
    h, tokens = 4096, 4096
    alone = layer_curve(
        llama_8b(), setting(h, sequence=tokens, context_parallel=4, options={"cp_comm_type": "p2p"})
    ).saved_bytes
    swapped = layer_curve(
        llama_8b(), setting(h, sequence=tokens, context_parallel=4, options={"cp_comm_type": "a2a"})
    ).saved_bytes
    assert swapped - alone == 2 * h * tokens


def test_latent_attention_and_experts() -> None:
    """A mixture-of-experts layer of DeepSeek-V2: what latent attention, router, experts and shared experts keep."""
    h, ql, c, r, nope, v, a = 5120, 1536, 512, 64, 128, 128, 128
    e, topk, m, shared, t = 160, 6, 1536, 3072, 4096
    capacity = -(-t * topk // e)
    n = capacity * e
    options = {
        "moe_token_dispatcher_type": "alltoall",
        "moe_permute_fusion": True,
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
    }
    config = setting(h, sequence=t, expert_parallel=8, options=options)
    attention = 4 * h + 4 + 4 * ql + 4 + 2 * (c + r) + 2 * c + 4 + 2 * a * (2 * (nope + r) + 2 * v) + 4 * a
    router = 8 * topk + 4 * topk + 4 * e + e + 4 * e + e
    dense = 4 * h + 4 + 2 * 2 * shared + 2 * shared
    maps = 4 * (2 * e + 1)
    experts = n * (2 * h + 4 * m + 2 * m + 2)
    found = layer_curve(deepseek_v2(), config, layer=1).saved_bytes
    assert found == pytest.approx(t * (attention + router + dense + maps) + experts, abs=64 * 512)


def test_a_z_loss_keeps_the_routers_logits() -> None:
    """Both ends of its logsumexp, in the router's dtype."""
    for options, size in (({}, 2), ({"moe_router_dtype": "fp32"}, 4)):
        plain, with_loss = (
            layer_curve(deepseek_v2(), setting(5120, options=options | more), layer=1).saved_bytes
            for more in ({}, {"moe_z_loss_coeff": 1e-3})
        )
        assert with_loss - plain == pytest.approx(4096 * (160 + 1) * size, abs=1024)


def test_imbalance_reaches_the_experts_only() -> None:
    """The busiest rank's experts keep more; attention and router do not."""
    options = {"moe_token_dispatcher_type": "alltoall", "moe_permute_fusion": True}
    even = layer_curve(deepseek_v2(), setting(5120, expert_parallel=8, options=options), layer=1).saved_bytes
    busy = layer_curve(
        deepseek_v2(), setting(5120, expert_parallel=8, options=options, expert_imbalance=1.5), layer=1
    ).saved_bytes
    assert busy - even == pytest.approx(4096 * 6 * 0.5 * (2 * 5120 + 6 * 1536 + 2), rel=0.001)


@pytest.mark.parametrize(
    ("module", "saving"),
    [
        ("moe_act", 2 * 1536 * 24640),
        ("mlp", 0),
        ("layernorm", 2 * 2 * 5120 * 4096),
        ("shared_experts", 6 * 3072 * 4096),
        ("mla_up_proj", 2 * 128 * (2 * 192 + 128) * 4096 + 2 * (1536 + 512) * 4096 + 8 * 4096),
    ],
)
def test_selective_recompute_drops_what_it_names(module: str, saving: int) -> None:
    """Each module of recompute_modules takes its own tensors out of the layer's saved set."""
    options: dict[str, object] = {
        "moe_token_dispatcher_type": "alltoall",
        "moe_permute_fusion": True,
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
    }
    whole = layer_curve(deepseek_v2(), setting(5120, expert_parallel=8, options=options), layer=1)
    options |= {"recompute_granularity": "selective", "recompute_modules": (module,)}
    less = layer_curve(deepseek_v2(), setting(5120, expert_parallel=8, options=options), layer=1)
    assert whole.saved_bytes - less.saved_bytes == pytest.approx(saving, abs=2 * MIB)


def test_recomputing_the_whole_mixture_keeps_its_input() -> None:
    """recompute_modules moe drops what the experts kept, and its backward holds it again."""
    options: dict[str, object] = {"moe_token_dispatcher_type": "alltoall", "moe_permute_fusion": True}
    whole = layer_curve(deepseek_v2(), setting(5120, expert_parallel=8, options=options), layer=1)
    options |= {"recompute_granularity": "selective", "recompute_modules": ("moe",)}
    less = layer_curve(deepseek_v2(), setting(5120, expert_parallel=8, options=options), layer=1)
    tokens, routed, hidden, expert = 4096, 6 * 4096, 5120, 1536
    assert whole.saved_bytes - less.saved_bytes > 2 * routed * (hidden + 3 * expert) + 2 * tokens * 6 * expert
    assert less.backward_peak.bytes > whole.saved_bytes


def test_saved_activations_can_be_distributed() -> None:
    """distribute_saved_activations keeps one tensor rank's share of a checkpoint's input."""
    alone = layer_curve(llama_8b(), setting(4096, tensor_parallel=4), recompute=True).saved_bytes
    config = setting(4096, tensor_parallel=4, options={"distribute_saved_activations": True})
    assert layer_curve(llama_8b(), config, recompute=True).saved_bytes * 4 == alone


def test_fp8_halves_what_linear_layers_keep() -> None:
    """Inputs of fp8 products are kept in one byte; the norms' inputs and the activation's input stay in bf16."""
    h, f, tokens = 4096, 14336, 4096
    wide = layer_curve(llama_8b(), setting(h)).saved_bytes
    options = {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}
    narrow = layer_curve(llama_8b(), setting(h, options=options)).saved_bytes
    assert wide - narrow == tokens * (2 * h + f)


def test_fused_accumulation_makes_no_weight_gradient() -> None:
    """With gradient_accumulation_fusion backward allocates no dW; without it, one weight's worth at a time."""
    fused = layer_curve(llama_8b(), setting(4096)).backward_peak
    plain = layer_curve(llama_8b(), setting(4096, options={"gradient_accumulation_fusion": False})).backward_peak
    assert plain.bytes - fused.bytes <= 2 * 28672 * 4096
    assert not any("dW" in row[0] for row in fused.inventory)


def test_swiglu_input_may_be_stored_in_fp8() -> None:
    """activation_func_fp8_input_store keeps the activation's input in one byte per element."""
    f, tokens = 14336, 4096
    wide = layer_curve(llama_8b(), setting(4096)).saved_bytes
    narrow = layer_curve(llama_8b(), setting(4096, options={"activation_func_fp8_input_store": True})).saved_bytes
    assert wide - narrow == 2 * f * tokens
