"""Bytes per token that a layer keeps, as formulas: the reader's way to check the ledger by hand.

h hidden, f ffn, q = heads x head_dim, k = key-value heads x head_dim, a heads, S sequence, E experts, K experts per
token, m expert width. Each formula is the sum of the tensors that autograd keeps; they hold in traces of torch 2.13
and transformers 5.23 (``traced_layers.json``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.frameworks.transformers.layers import AUTOCAST, FP32, TOKENS, TORCHTITAN, curve_of, saved_per_token


class Sizes(NamedTuple):
    """The letters of the formulas."""

    h: int
    f: int
    a: int
    kv: int
    d: int

    @property
    def q(self) -> int:
        """Width of the queries."""
        return self.a * self.d

    @property
    def k(self) -> int:
        """Width of the keys."""
        return self.kv * self.d


SIZE = Sizes(1024, 3072, 16, 4, 64)
MHA = SIZE._replace(kv=16)
S = TOKENS


def config(model_type: str, size: Sizes = SIZE, **more: Any) -> dict[str, Any]:
    """A two-layer configuration in the usual key names."""
    return {
        "model_type": model_type,
        "hidden_size": size.h,
        "intermediate_size": size.f,
        "num_attention_heads": size.a,
        "num_key_value_heads": size.kv,
        "head_dim": size.d,
        "num_hidden_layers": 2,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        **more,
    }


def without(mapping: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The mapping less some keys."""
    return {k: v for k, v in mapping.items() if k not in keys}


def llama(z: Sizes) -> int:
    """Two norms (fp32 copy, normed, weighted), q, k, v, output, logsumexp, gate, its activation, up, their product."""
    return 16 * z.h + 8 * z.f + 4 * z.q + 4 * z.k + 4 * z.a + 8


NEOX = without(config("gpt_neox", MHA, rotary_pct=0.25, hidden_act="gelu", use_parallel_residual=True), "head_dim")
GPT2 = {"model_type": "gpt2", "n_embd": 1024, "n_layer": 2, "n_head": 16, "n_positions": 2048, "vocab_size": 512}
OPT = {
    "model_type": "opt",
    "hidden_size": 1024,
    "ffn_dim": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "dropout": 0.1,
    "word_embed_proj_dim": 1024,
}
GEMMA2 = config("gemma2", sliding_window=4096, hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=50.0)
GEMMA3 = config(
    "gemma3_text",
    sliding_window=256,
    hidden_activation="gelu_pytorch_tanh",
    layer_types=["sliding_attention", "full_attention"],
)

DENSE: dict[str, tuple[dict[str, Any], int, Callable[[Sizes], float]]] = {
    "llama": (config("llama"), 0, llama),
    "qwen2": (config("qwen2"), 0, llama),
    "mistral": (config("mistral", sliding_window=None), 0, llama),
    # fp32 copy and normed copy of q and k, an rstd per head
    "qwen3": (config("qwen3"), 0, lambda z: llama(z) + 6 * z.q + 6 * z.k + 4 * z.a + 4 * z.kv),
    # the whole qkv output stays for v; q is put together anew by cat, so that the flash output is copied
    "phi3": (
        config("phi3", MHA, sliding_window=None),
        0,
        lambda z: 16 * z.h + 8 * z.f + 8 * MHA.q + 6 * MHA.k + 4 * z.a + 8,
    ),
    # LayerNorm keeps its input (one kernel) and two statistics; the flash output is copied, the new gelu is in pieces
    "gpt_neox": (NEOX, 0, lambda z: 20 * z.h + 4 * z.f + 4 * z.a + 16),
    "gpt2": (GPT2, 0, lambda z: 18 * 1024 + 10 * 4096 + 4 * 16 + 16),
    "opt": (OPT, 0, lambda z: 18 * 1024 + 2 * 4096 + 4 * 16 + 16),
    # four norms whose weight multiplies in fp32; eager attention with soft-capping: tanh, softmax fp32, probabilities
    "gemma2": (GEMMA2, 0, lambda z: 36 * z.h + 8 * z.f + 8 * z.q + 8 * z.a * S),
    # the sliding layer has a mask and repeats k and v; the full layer has neither
    "gemma3 full": (GEMMA3, 1, lambda z: 36 * z.h + 8 * z.f + 12 * z.q + 12 * z.k + 4 * z.a),
    "gemma3 sliding": (GEMMA3, 0, lambda z: 36 * z.h + 8 * z.f + 16 * z.q + 8 * z.k + 4 * z.a + 2 * S),
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_layer_in_pure_bf16(name: str) -> None:
    """Each dense family keeps the tensors of its formula."""
    mapping, layer, formula = DENSE[name]
    expected = formula(SIZE)
    assert saved_per_token(mapping, layer) == pytest.approx(expected, rel=3e-3 if name.startswith("gemma") else 1e-9)


def test_autocast_keeps_fp32_norms_and_a_cast_input_per_linear_layer() -> None:
    """Under autocast: 26h + 8f + 4q + 4k + 4a + 8, and a bf16 copy of every linear weight."""
    z = SIZE
    weights = z.h * (z.q + 2 * z.k) + z.q * z.h + 3 * z.h * z.f
    expected = 26 * z.h + 8 * z.f + 4 * z.q + 4 * z.k + 4 * z.a + 8 + 2 * weights / TOKENS
    assert saved_per_token(config("llama"), **AUTOCAST) == pytest.approx(expected)


def test_fp32_layer_of_ungrouped_heads_keeps_twice_the_bf16_set() -> None:
    """Pythia in fp32: 36h + 8f + 4a + 16 (no copy of the memory-efficient kernel's output)."""
    z = MHA
    assert saved_per_token(NEOX, **FP32) == 36 * z.h + 8 * z.f + 4 * z.a + 16


def test_grouped_heads_in_fp32_fall_to_the_math_kernel() -> None:
    """No fused kernel takes grouped fp32 heads: scores of the whole sequence are kept."""
    grouped, ungrouped = config("llama"), config("llama", MHA)
    assert saved_per_token(grouped, **FP32) > saved_per_token(ungrouped, **FP32) + 0.99 * 4 * SIZE.a * S


def test_eager_attention_keeps_softmax_and_probabilities() -> None:
    """Eager: 6aS + 8q in place of flash's 4q + 4k + 4a."""
    z = SIZE
    expected = llama(z) - 4 * z.q - 4 * z.k - 4 * z.a + 6 * z.a * S + 8 * z.q
    assert saved_per_token(config("llama"), attention="eager") == expected


def test_fp32_adapters_keep_an_fp32_copy_of_every_input() -> None:
    """LoRA with fp32 adapters on a bf16 model keeps more than full training: 28h + 10f + 8q + 4k + 4a + 28r + 8."""
    z, r = SIZE, 16
    expected = 28 * z.h + 10 * z.f + 8 * z.q + 4 * z.k + 4 * z.a + 28 * r + 8
    assert saved_per_token(config("llama"), lora=r) == expected


def test_full_recompute_keeps_the_input_alone() -> None:
    """2h per token, 4h where the stream is fp32."""
    assert saved_per_token(config("llama"), recompute="full") == 2 * SIZE.h
    assert saved_per_token(config("llama"), recompute="full", **AUTOCAST) == 4 * SIZE.h


def test_tensor_parallelism_divides_what_is_inside_the_halves() -> None:
    """Without sequence parallelism the norms stay whole; with it the gathered inputs of both halves do (4h)."""
    z, tp = SIZE, 4
    inside = (8 * z.f + 4 * z.q + 4 * z.k + 4 * z.a) / tp
    assert saved_per_token(config("llama"), tensor_parallel=tp) == 16 * z.h + inside + 8
    divided = saved_per_token(config("llama"), tensor_parallel=tp, sequence_parallel=True)
    assert divided == 12 * z.h / tp + 4 * z.h + inside + 8 / tp


class Routed(NamedTuple):
    """E experts, K per token, m their width."""

    e: int = 16
    k: int = 4
    m: int = 512

    def rows(self, h: int, scores: int) -> int:
        """Sorted tokens, gate and up, activation, product, output; order, token, inverse order, choice (int64), scores."""
        return self.k * (4 * h + 8 * self.m + 4 * 8 + scores)


R = Routed()
ROUTED: dict[str, tuple[dict[str, Any], Callable[[Sizes], float]]] = {
    # bf16 score per row, fp32 copy that dividing in place keeps, the sum; softmax over all experts in fp32
    "qwen3_moe": (
        config("qwen3_moe", moe_intermediate_size=R.m, num_experts=R.e, num_experts_per_tok=R.k, norm_topk_prob=True),
        lambda z: DENSE["qwen3"][2](z) - 8 * z.f + R.rows(z.h, 2 + 4) + 4 * R.e + 4,
    ),
    "mixtral": (
        config(
            "mixtral", Sizes(1024, R.m, 16, 4, 64), num_local_experts=R.e, num_experts_per_tok=R.k, sliding_window=None
        ),
        lambda z: llama(z) - 8 * z.f + R.rows(z.h, 4 + 4) + 4 * R.e + 4,
    ),
    # router in fp32 (4h of its input, a cast weight), scores not normalised, shared experts
    "deepseek_v2": (
        without(
            config(
                "deepseek_v2",
                MHA,
                moe_intermediate_size=R.m,
                n_routed_experts=R.e,
                num_experts_per_tok=R.k,
                n_shared_experts=2,
                first_k_dense_replace=0,
                q_lora_rank=None,
                kv_lora_rank=256,
                qk_nope_head_dim=64,
                qk_rope_head_dim=32,
                v_head_dim=64,
            ),
            "head_dim",
        ),
        lambda z: (
            (16 * z.h + 8)
            + (8 * 256 + 4)  # the latent's norm
            + 2 * z.a * (64 + 64)  # kv_b_proj, of which v is a view
            + 4 * z.a * (64 + 32)  # assembled q and k
            + 2 * z.a * 64
            + 4 * z.a  # output, logsumexp
            + (4 * z.h + 4 * R.e + 4 * R.e * z.h / TOKENS)  # router input, softmax, its cast weight
            + R.rows(z.h, 4)
            + 8 * 2 * R.m
        ),
    ),
}


@pytest.mark.parametrize("name", ROUTED)
def test_routed_layer_in_pure_bf16(name: str) -> None:
    """Each routed family keeps its rows per chosen expert, its router's scores and its permutations."""
    mapping, formula = ROUTED[name]
    offsets = 512 / TOKENS  # one allocator block: where each expert's rows end
    assert saved_per_token(mapping) == formula(SIZE) + offsets


def test_gpt_oss_keeps_every_piece_of_its_gate() -> None:
    """GPT-OSS: 20h norms, eager scores with a sink column, K(14m + 4h) for the clamped gate."""
    mapping = config("gpt_oss", num_local_experts=8, num_experts_per_tok=2, sliding_window=128)
    mapping["intermediate_size"] = 512
    z, k, m = SIZE, 2, 512
    attention = 2 * z.a * (S + 1) + 8 * z.a + 4 * z.q + 2 * z.q + 2 * z.q
    expected = 20 * z.h + attention + k * (14 * m + 4 * z.h)
    assert saved_per_token(mapping, attention="eager") == pytest.approx(expected, rel=2e-3)


def test_adapted_experts_are_merged_into_a_copy_that_backward_needs() -> None:
    """peft adds B A to the stacked experts of Qwen 3 MoE: each layer keeps a copy of all of them."""
    mapping = ROUTED["qwen3_moe"][0]
    copies = 2 * R.e * 3 * SIZE.h * R.m / TOKENS
    assert saved_per_token(mapping, lora=8) > copies
    gpt_oss = config("gpt_oss", num_local_experts=8, num_experts_per_tok=2, sliding_window=128)
    plain = 2 * 8 * 3 * SIZE.h * SIZE.f / TOKENS  # peft leaves GPT-OSS's experts alone
    assert saved_per_token(gpt_oss, lora=8, attention="eager") < plain


def test_llama_4_gives_every_token_to_every_expert() -> None:
    """transformers' Llama 4 keeps E(4h + 8m) per token: the repeated input, its weighted copy and the gate's pieces."""
    mapping = config(
        "llama4_text",
        intermediate_size_mlp=3072,
        num_local_experts=8,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        no_rope_layers=[1, 1],
    )
    kept = 8 * (4 * SIZE.h + 8 * SIZE.f)
    assert kept < saved_per_token(mapping) < kept * 1.4


def test_torchtitan_norms_keep_8h_less() -> None:
    """torchtitan: 8h + 8f + 4q + 4k + 4a + 4 head_dim + 8; its norms are one kernel, its rope picks rows per layer."""
    z = SIZE
    expected = 8 * z.h + 8 * z.f + 4 * z.q + 4 * z.k + 4 * z.a + 4 * z.d + 8
    assert saved_per_token(config("llama"), **TORCHTITAN) == expected


def test_torchtitan_divides_over_tensor_ranks() -> None:
    """With sequence parallelism 4h/tp + 4h stay outside the division, without it 8h."""
    z, tp = SIZE, 4
    inside = (8 * z.f + 4 * z.q + 4 * z.k + 4 * z.a) / tp + 4 * z.d
    divided = saved_per_token(config("llama"), tensor_parallel=tp, sequence_parallel=True, **TORCHTITAN)
    assert divided == 4 * z.h / tp + 4 * z.h + inside + 8 / tp
    assert saved_per_token(config("llama"), tensor_parallel=tp, **TORCHTITAN) == 8 * z.h + inside + 8


def test_selective_recompute_keeps_every_second_product() -> None:
    """torchtitan's SelectiveAC keeps the input, wqkv, attention, w1 and w2, and recomputes wo and w3."""
    z = SIZE
    expected = 2 * z.h + 2 * (z.q + 2 * z.k) + 2 * z.q + 4 * z.a + 2 * z.f + 2 * z.h
    assert saved_per_token(config("llama"), recompute="selective", **TORCHTITAN) == expected


def test_selective_recompute_keeps_both_all_to_alls() -> None:
    """Expert parallelism adds 2hK twice: the tokens sent to experts, and their outputs sent back."""
    mapping = ROUTED["qwen3_moe"][0]
    alone = saved_per_token(mapping, recompute="selective", **TORCHTITAN)
    parallel = saved_per_token(mapping, recompute="selective", expert_parallel=4, **TORCHTITAN)
    assert parallel - alone == 2 * 2 * SIZE.h * R.k


def test_torchtitan_weights_expert_outputs_in_fp32() -> None:
    """torchtitan keeps the experts' outputs in fp32 (4hK); transformers keeps Qwen 3's in bf16."""
    mapping = ROUTED["qwen3_moe"][0]
    z = SIZE
    norms_and_rope = 16 * z.h + 6 * z.q + 6 * z.k - (8 * z.h + 2 * z.q + 2 * z.k + 8 * z.d)
    bookkeeping = R.k * (32 + 6) + 4 * R.e + 4 - (R.k * (3 * 8 + 2 * 2) + 2 * R.e + 2)
    difference = saved_per_token(mapping) - saved_per_token(mapping, **TORCHTITAN)
    assert difference == norms_and_rope + bookkeeping - 2 * z.h * R.k


def test_lightning_attention_keeps_scores_within_blocks() -> None:
    """MiniMax's linear layers keep 2a x 256 bytes of scores per token, whatever the sequence."""
    mapping = config(
        "minimax", num_local_experts=R.e, num_experts_per_tok=R.k, layer_types=["linear_attention", "full_attention"]
    )
    short = curve_of(mapping, 0, sequence=1024).saved_bytes / 1024
    long = curve_of(mapping, 0, sequence=4096).saved_bytes / 4096
    # all blocks but one keep their decayed queries and keys
    assert long - short == pytest.approx(4 * SIZE.q * (1 / 4 - 1 / 16), rel=1e-3)
