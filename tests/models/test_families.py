"""What each family's architecture says about its blocks: the facts that decide which tensors activations keep."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from memcheck.catalog.names import find_model
from memcheck.families.registry import read_architecture
from memcheck.models.module_types import SharedExperts
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mixer, Mlp, Moe
from tests.models.configs import GEMMA2, GEMMA3, GPT2, LLAMA


def catalog(name: str) -> Architecture:
    """A catalog model's architecture."""
    return read_architecture(find_model(name).config)


def attention(architecture: Architecture, layer: int = 0) -> Attention:
    """The softmax attention of one layer."""
    mixer = architecture.layers()[layer].mixer
    assert isinstance(mixer, Attention)
    return mixer


def sparse(architecture: Architecture) -> Moe:
    """The routed feed-forward network of the last layer."""
    mlp = architecture.layers()[-1].mlp
    assert isinstance(mlp, Moe)
    return mlp


ATTENTION: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {"fused_qkv": "", "qkv_bias": False, "rotary_dim": 128, "window": None, "dropout": 0.0},
    "qwen2.5-7b": {"qkv_bias": True, "out_bias": False},
    "mistral-7b": {"window": None},
    "mistral-7b-v0.1": {"window": 4096},
    "phi-3-mini": {"fused_qkv": "slices", "window": 2047},
    "phi-2": {"qkv_bias": True, "out_bias": True, "rotary_dim": 32},
    "gpt2": {"fused_qkv": "split", "rotary_dim": 0, "dropout": 0.1, "qkv_bias": True, "out_bias": True},
    "pythia-1.4b": {"fused_qkv": "heads", "rotary_dim": 32, "qkv_bias": True},
    "gpt-j-6b": {
        "rotary_dim": 64,
        "rotation.interleaved": True,
        "eager.scores_fp32": True,
        "kernels.sdpa": False,
        "qkv_bias": False,
    },
    "bloom-560m": {"alibi": True, "kernels.sdpa": False, "kernels.flash": False, "rotary_dim": 0},
    "mpt-7b": {"alibi": True, "kernels.sdpa": False, "kernels.flash": False, "clip_qkv": False},
    "falcon-7b": {"kv_heads": 1, "fused_qkv": "index"},
    "falcon-40b": {"kv_heads": 8},
    "dbrx": {"fused_qkv": "split", "clip_qkv": True, "kv_heads": 8},
    "command-r": {"rotation.interleaved": True},
    "glm-4-9b": {"rotary_dim": 64, "rotation.interleaved": True, "qkv_bias": True, "out_bias": False},
    "gpt-oss-20b": {"sinks": "logit", "kernels.sdpa": False, "window": 128, "qkv_bias": True, "out_bias": True},
    "gemma-2-9b": {"softcap": True, "window": 4096},
    "llama-4-scout": {"window": 8192, "rotation.interleaved": True, "kernels.flash": False},
    "starcoder2-3b": {"window": 4096, "dropout": 0.1, "qkv_bias": True, "out_bias": True},
    "nemotron-4-340b": {"rotary_dim": 96, "head_dim": 192},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_the_first_layer(name: str) -> None:
    """Bias, fusion, rotation, window, kernels and dropout of a family's attention are as its module is written."""
    found = attention(catalog(name))
    assert {key: attrgetter(key)(found) for key in ATTENTION[name]} == ATTENTION[name]


NORMS: dict[str, str] = {
    "llama-3.1-8b": "rmsnorm",
    "gemma-2-2b": "rmsnorm-unit-offset",
    "qwen3-next-80b-a3b": "rmsnorm-unit-offset",
    "gpt-oss-20b": "rmsnorm-fp32-weight",
    "olmo-2-7b": "rmsnorm-fp32-weight",
    "nemotron-h-8b": "rmsnorm-fp32-weight",
    "olmo-1b": "layernorm-fp32",
    "command-r": "layernorm-pieces",
    "minitron-4b": "layernorm-1p",
    "gpt2": "layernorm",
    "phi-3.5-moe": "layernorm",
}


@pytest.mark.parametrize("name", NORMS)
def test_kind_of_the_norms(name: str) -> None:
    """How a family writes its norm decides what it keeps, and the final norm is of the same kind."""
    architecture = catalog(name)
    assert {norm.kind for block, _ in architecture.blocks for norm in block.norms} == {NORMS[name]}
    assert architecture.final_norm is not None
    assert architecture.final_norm.kind == NORMS[name]


def places(block: Block) -> tuple[bool, bool, bool, bool]:
    """Whether there is a norm before and behind each half."""
    norms = (block.input_norm, block.mlp_norm, block.mixer_output_norm, block.mlp_output_norm)
    return norms[0] is not None, norms[1] is not None, norms[2] is not None, norms[3] is not None


@pytest.mark.parametrize(
    ("name", "expected", "parallel"),
    [
        ("llama-3.1-8b", (True, True, False, False), False),
        ("gemma-2-2b", (True, True, True, True), False),
        ("glm-4-32b", (True, True, True, True), False),
        ("olmo-2-7b", (False, False, True, True), False),
        ("pythia-1.4b", (True, True, False, False), True),
        ("falcon-7b", (True, False, False, False), True),
        ("falcon-40b", (True, True, False, False), True),
        ("gpt-j-6b", (True, False, False, False), True),
        ("phi-2", (True, False, False, False), True),
        ("command-r", (True, False, False, False), True),
        ("stablelm-2-12b", (True, False, False, False), True),
    ],
)
def test_placement_of_the_norms(name: str, expected: tuple[bool, ...], parallel: bool) -> None:
    """Norms stand before or behind the halves, and the halves follow each other or run side by side."""
    block = catalog(name).blocks[0][0]
    assert places(block) == expected
    assert block.parallel is parallel


def test_norms_behind_the_sum() -> None:
    """OPT-350m normalises after each residual sum, has no final norm, and projects a narrower embedding."""
    architecture = catalog("opt-350m")
    assert architecture.blocks[0][0].residual == "post-norm"
    assert architecture.final_norm is None
    assert architecture.embedding_size == 512
    assert [t.shape for t in architecture.extra_tensors] == [(512, 1024), (1024, 512)]


def test_query_and_key_norms_differ_in_scope() -> None:
    """Qwen 3 normalises each head with one weight, OLMo 2 all heads together, Command R+ each head with its own."""
    qwen, olmo, command = (attention(catalog(n)) for n in ("qwen3-8b", "olmo-2-32b", "command-r-plus"))
    assert qwen.query_norm is not None
    assert olmo.query_norm is not None
    assert olmo.key_norm is not None
    assert command.query_norm is not None
    assert (qwen.query_norm.size, qwen.query_norm.rows) == (128, 1)
    assert (olmo.query_norm.size, olmo.key_norm.size) == (5120, 1024)
    assert (command.query_norm.size, command.query_norm.rows) == (128, 96)


def test_llama_4_normalises_rotated_layers_only() -> None:
    """Scout: three layers rotate, are chunked and have weightless norms; the fourth has none of these."""
    architecture = catalog("llama-4-scout")
    rotated, plain = attention(architecture, 0), attention(architecture, 3)
    assert rotated.query_norm is not None
    assert rotated.query_norm.kind == "l2"
    assert (plain.query_norm, plain.rotary_dim, plain.window) == (None, 0, None)


def windows(architecture: Architecture) -> list[int | None]:
    """The window of each layer."""
    return [attention(architecture, i).window for i in range(architecture.num_layers)]


def test_windows_alternate() -> None:
    """Gemma 2: every other layer, first one windowed. Gemma 3: five of six. GPT-OSS as Gemma 2. OLMo 3: three of four."""
    assert windows(read_architecture(GEMMA2)) == [8, None, 8, None]
    assert windows(read_architecture(GEMMA3)) == [8, 8, 8, 8, 8, None, 8]
    assert windows(catalog("gpt-oss-20b"))[:3] == [128, None, 128]
    assert windows(catalog("olmo-3-7b"))[:5] == [4096, 4096, 4096, None, 4096]


def test_window_without_its_layers_rotated() -> None:
    """Command R7B rotates windowed layers only; SmolLM 3 rotates three of four without any window."""
    command, smol = catalog("command-r7b"), catalog("smollm3-3b")
    assert [bool(attention(command, i).rotary_dim) for i in range(4)] == [True, True, True, False]
    assert [bool(attention(smol, i).rotary_dim) for i in range(4)] == [True, True, True, False]
    assert windows(smol) == [None] * 36


def test_stated_layer_types_win() -> None:
    """A list in the configuration replaces the family's pattern."""
    stated = {**GEMMA2, "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"]}
    assert windows(read_architecture(stated)) == [None, None, 8, None]


def test_qwen_window_needs_its_switch() -> None:
    """Qwen 2 states a window that is off unless use_sliding_window, and then starts at max_window_layers."""
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 8}
    assert windows(read_architecture(qwen)) == [None] * 3
    on = {**qwen, "use_sliding_window": True, "max_window_layers": 2}
    assert windows(read_architecture(on)) == [None, None, 8]


def test_mistral_without_a_stated_window() -> None:
    """A hand-written Mistral without sliding_window means none, and says that it was taken so."""
    stated = {**LLAMA, "model_type": "mistral"}
    read = read_architecture(stated)
    assert windows(read) == [None] * 3
    assert any("sliding_window" in n for n in read.notes)
    assert read_architecture({**stated, "sliding_window": None}).notes == ()


ROUTERS: dict[str, dict[str, Any]] = {
    "mixtral-8x7b": {
        "router": "softmax",
        "shared": SharedExperts(0, gate=False, runs_first=False),
        "routing.scores_fp32": True,
        "routing.normalised": True,
    },
    "qwen1.5-moe-a2.7b": {
        "router": "softmax",
        "shared": SharedExperts(5632, gate=True, runs_first=False),
        "routing.normalised": False,
    },
    "qwen3-30b-a3b": {
        "router": "softmax",
        "shared": SharedExperts(0, gate=False, runs_first=False),
        "routing.normalised": True,
        "routing.scores_fp32": False,
    },
    "deepseek-v2-lite": {
        "router": "softmax",
        "shared": SharedExperts(2816, gate=False, runs_first=False),
        "routing.input_fp32": True,
    },
    "deepseek-v3": {
        "router": "sigmoid",
        "shared": SharedExperts(2048, gate=False, runs_first=False),
        "routing.input_fp32": True,
    },
    "glm-4.5-air": {"router": "sigmoid", "shared": SharedExperts(1408, gate=False, runs_first=False)},
    "gpt-oss-20b": {"router": "softmax-topk", "bias": True, "clamp": "interleaved"},
    "granite-3.1-3b-a800m": {"router": "softmax-topk", "bias": False},
    "phi-3.5-moe": {"router": "sparsemixer", "experts_per_token": 2},
    "minimax-m2": {"router": "sigmoid", "shared": SharedExperts(0, gate=False, runs_first=False)},
    "llama-4-scout": {
        "router": "sigmoid",
        "shared": SharedExperts(8192, gate=False, runs_first=False),
        "experts_per_token": 1,
    },
    "dbrx": {"router": "softmax", "experts": 16, "experts_per_token": 4, "width": 10752},
    "kimi-k2": {"experts": 384, "experts_per_token": 8},
}


@pytest.mark.parametrize("name", ROUTERS)
def test_router_and_shared_experts(name: str) -> None:
    """How tokens are routed and what runs beside the experts is as the family's module is written."""
    found = sparse(catalog(name))
    assert {key: attrgetter(key)(found) for key in ROUTERS[name]} == ROUTERS[name]


def test_interleaved_experts() -> None:
    """Llama 4 Maverick routes every second layer; the others are dense and wider."""
    blocks = catalog("llama-4-maverick").layers()
    assert isinstance(blocks[0].mlp, Mlp)
    assert isinstance(blocks[1].mlp, Moe)
    assert blocks[0].mlp.width == 16384


@pytest.mark.parametrize(
    ("name", "gated", "fused", "activation"),
    [
        ("llama-3.1-8b", True, False, "silu"),
        ("phi-3-mini", True, True, "silu"),
        ("glm-4-9b", True, True, "silu"),
        ("gemma-2b", True, False, "gelu_pytorch_tanh"),
        ("gpt2-xl", False, False, "gelu_new"),
        ("pythia-1.4b", False, False, "gelu"),
        ("gpt-neox-20b", False, False, "gelu_fast"),
        ("opt-1.3b", False, False, "relu"),
        ("nemotron-4-340b", False, False, "relu2"),
        ("mpt-7b", False, False, "gelu"),
    ],
)
def test_feed_forward(name: str, gated: bool, fused: bool, activation: str) -> None:
    """Whether the network is gated, in one matrix or two, and its activation function."""
    mlp = catalog(name).blocks[0][0].mlp
    assert isinstance(mlp, Mlp)
    assert (mlp.gated, mlp.fused_gate_up, mlp.activation) == (gated, fused, activation)


def test_gemma_means_the_tanh_approximation() -> None:
    """Gemma 1's released files say gelu; the class runs its tanh approximation."""
    mlp = read_architecture({**LLAMA, "model_type": "gemma", "hidden_act": "gelu"}).blocks[0][0].mlp
    assert isinstance(mlp, Mlp)
    assert mlp.activation == "gelu_pytorch_tanh"


@pytest.mark.parametrize(
    ("name", "dropout", "embedding"), [("gpt2", 0.1, 0.1), ("opt-1.3b", 0.1, 0.0), ("pythia-1.4b", 0.0, 0.0)]
)
def test_dropout_of_the_class(name: str, dropout: float, embedding: float) -> None:
    """GPT-2 and OPT drop out by default, and the masks cost a byte per element; GPT-NeoX does not."""
    architecture = catalog(name)
    assert architecture.blocks[0][0].dropout == dropout
    assert architecture.embedding_dropout == embedding


def test_class_defaults_of_gpt2() -> None:
    """A GPT-2 configuration without dropout keys has the class's 0.1 everywhere."""
    architecture = read_architecture(GPT2)
    assert attention(architecture).dropout == architecture.embedding_dropout == architecture.blocks[0][0].dropout == 0.1


def test_constants_on_the_stream() -> None:
    """Gemma scales the embedding, Granite everything, Command R its logits; Gemma 2 caps them."""
    gemma, granite, command = catalog("gemma-2-2b"), catalog("granite-3.1-2b"), catalog("command-r")
    assert (gemma.embedding_scale, gemma.final_softcap, gemma.logit_scale) == ("module", True, False)
    assert (granite.embedding_scale, granite.logit_scale) == ("model", True)
    assert granite.blocks[0][0].branch_scale == "constant"
    assert (command.embedding_scale, command.logit_scale) == ("", True)


def test_hybrid_stacks() -> None:
    """Nemotron-H alternates mixers and networks, Qwen 3 Next has softmax attention in every fourth layer."""
    nemotron, qwen, minimax = (catalog(n).layers() for n in ("nemotron-h-8b", "qwen3-next-80b-a3b", "minimax-text-01"))
    kinds = [type(b.mixer) if b.mixer is not None else type(b.mlp) for b in nemotron]
    assert (kinds.count(Mixer), kinds.count(Mlp), kinds.count(Attention)) == (24, 24, 4)
    assert [isinstance(b.mixer, Attention) for b in qwen[:4]] == [False, False, False, True]
    assert sum(isinstance(b.mixer, Attention) for b in minimax) == 10
    assert attention(catalog("qwen3-next-80b-a3b"), 3).output_gate


def test_recurrent_state() -> None:
    """A Mamba-2 layer keeps heads x head_dim x state in fp32, and the convolution's last columns in two bytes."""
    mixer = catalog("nemotron-h-8b").layers()[0].mixer
    assert isinstance(mixer, Mixer)
    assert mixer.state_bytes_per_sequence == 128 * 64 * 128 * 4 + (128 * 64 + 2 * 8 * 128) * 4 * 2


def test_latent_dimensions() -> None:
    """DeepSeek V3's ranks and head dimensions; Kimi K2 has half its heads."""
    deepseek, kimi = catalog("deepseek-v3").layers()[0].mixer, catalog("kimi-k2").layers()[0].mixer
    assert isinstance(deepseek, LatentAttention)
    assert isinstance(kimi, LatentAttention)
    assert deepseek[:6] == (128, 1536, 512, 128, 64, 128)
    assert kimi.heads == 64


def test_prediction_layers_are_mentioned() -> None:
    """Multi-token-prediction layers are in the file and not in the model that transformers builds."""
    config = find_model("deepseek-v3").config
    read = read_architecture({**config, "num_nextn_predict_layers": 1})
    assert any("multi-token-prediction" in n for n in read.notes)
    assert read.blocks == read_architecture(config).blocks
