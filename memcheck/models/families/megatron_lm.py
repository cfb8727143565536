"""Megatron-LM's own GPT, described by its arguments with underscores.

Source: ``megatron/training/arguments.py`` and ``core/models/gpt/gpt_layer_specs.py`` at commit d98e8a64dd.

No class of transformers has all of its shapes (biases with rotary embedding, experts with biases, grouped heads with
learned positions), so it is a family of its own. Only Megatron runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from memcheck.edge.text import whole_number
from memcheck.models.parts.attention import Projections, grouped_attention
from memcheck.models.parts.decoder import decoder
from memcheck.models.parts.feed_forward import gated_mlp, plain_mlp, stacked_experts
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.megatron_delta import FREQUENCY, delta_net, has_delta_nets
from memcheck.models.parts.sizes import StackDimensions, check_groups, split_heads
from memcheck.models.parts.stack import stack
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    LatentAttention,
    Mixer,
    Mlp,
    Moe,
    Norm,
    ParameterTensor,
)

MODEL_TYPE = "megatron-lm"
PROJECTIONS = Projections(("linear_qkv",), "linear_proj", "self_attention")
GATED = PROJECTIONS._replace(output_gate=True)
LATENT_DEFAULTS = {
    "kv_lora_rank": 32,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
}
"""``MLATransformerConfig``; ``q_lora_rank`` has none."""
DROPOUT = 0.1
"""``--hidden-dropout`` and ``--attention-dropout`` of arguments.py."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: megatron-lm``."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_layers", maximum=MAX_LAYERS)
    dropout = config.dropout("hidden_dropout", default=DROPOUT)
    latent = config.flag("multi_latent_attention")
    mixer: Attention | LatentAttention = _latent(config, hidden) if latent else _attention(config, hidden)
    dense = _dense(config, hidden)
    first, second = _norm(config, hidden, "input_layernorm"), _norm(config, hidden, "pre_mlp_layernorm")
    experts = _experts(config, hidden) if config.has("num_experts") else None
    routed = [False] * layers if experts is None else _pattern(config, "moe_layer_freq", layers, _every)
    delta = delta_net(config, hidden, biased=first.bias) if has_delta_nets(config) else None
    linear = [False] * layers if delta is None else _pattern(config, FREQUENCY, layers, _all_but_every)

    def build_layer(kind: tuple[bool, bool]) -> Block:
        own: Attention | LatentAttention | Mixer = mixer if delta is None or not kind[0] else delta
        mlp: Mlp | Moe = dense if experts is None or not kind[1] else experts
        return Block(mixer=own, mlp=mlp, input_norm=first, mlp_norm=second, dropout=dropout)

    blocks = stack(zip(linear, routed, strict=True), build_layer)
    learned = config.text("position_embedding_type", default="learned_absolute") == "learned_absolute"
    positions = config.integer("max_position_embeddings", default=0)
    if learned and not positions:
        config.fail("max_position_embeddings", "the table of learned positions has no size", "state it")
    heads = config.integer("num_attention_heads")
    size = StackDimensions(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=0,
        vocab=config.integer("vocab_size"),
        positions=positions,
    )
    return decoder(
        config,
        size,
        blocks,
        tied=not config.flag("untie_embeddings_and_output_weights"),
        final_norm=_norm(config, hidden, "decoder.final_layernorm"),
        rotary_dim=0 if isinstance(mixer, LatentAttention) else mixer.rotary_dim,
        learned_positions=positions if learned else 0,
        embedding_dropout=dropout,
    )


def _norm(config: ConfigReader, size: int, name: str) -> Norm:
    kind = config.text("normalization", default="LayerNorm")
    if kind not in ("LayerNorm", "RMSNorm"):
        config.fail("normalization", f"{kind} is neither LayerNorm nor RMSNorm")
    return Norm("rmsnorm", size, name=name) if kind == "RMSNorm" else Norm("layernorm", size, bias=True, name=name)


def _width(config: ConfigReader, hidden: int) -> int:
    """``--ffn-hidden-size``; unset it is 4 h, or two thirds of that in multiples of 64 with ``--swiglu``."""
    usual = int(hidden * 8 / 3 / 64) * 64 if config.flag("swiglu") else 4 * hidden
    return config.integer("ffn_hidden_size", default=usual)


def _activation(config: ConfigReader) -> tuple[str, bool]:
    """The activation, and whether it gates: ``--swiglu``, or ``--quick-geglu``, which GPT-OSS has."""
    if config.flag("swiglu"):
        config.ignore("quick_geglu", "squared_relu")
        return "silu", True
    squared, quick = config.flag("squared_relu"), config.flag("quick_geglu")
    return ("quick_gelu", True) if quick else ("relu2" if squared else "gelu", False)


def _biased(config: ConfigReader) -> bool:
    return not config.flag("disable_bias_linear")


def _dense(config: ConfigReader, hidden: int) -> Mlp:
    width, (activation, gated), bias = _width(config, hidden), _activation(config), _biased(config)
    if gated:
        return gated_mlp(hidden, width, activation, bias=bias)
    return plain_mlp(hidden, width, activation, "mlp.linear_fc1", "mlp.linear_fc2", bias=bias)


def _experts(config: ConfigReader, hidden: int) -> Moe:
    experts, (activation, gated), bias = config.integer("num_experts"), _activation(config), _biased(config)
    width = config.integer("moe_ffn_hidden_size", default=_width(config, hidden))
    shared = config.integer("moe_shared_expert_intermediate_size", default=0, minimum=0)
    sigmoid = config.text("moe_router_score_function", default="softmax") == "sigmoid"
    before = config.flag("moe_router_pre_softmax")
    tensors = (
        ParameterTensor("mlp.router.weight", (experts, hidden), "router"),
        *stacked_experts("mlp.experts", experts, hidden, width, gated=gated),
    )
    if bias:
        first = width * 2 if gated else width
        tensors += (
            ParameterTensor("mlp.experts.linear_fc1.bias", (experts, first), "experts"),
            ParameterTensor("mlp.experts.linear_fc2.bias", (experts, hidden), "experts"),
        )
    gated_share = config.flag("moe_shared_expert_gate")
    if shared:
        if gated_share:
            tensors += (ParameterTensor("mlp.shared_experts.gate_weight", (1, hidden), "shared_experts"),)
        tensors += linear(
            "mlp.shared_experts.linear_fc1", 2 * shared if gated else shared, hidden, "shared_experts", "column"
        )
        tensors += linear("mlp.shared_experts.linear_fc2", hidden, shared, "shared_experts", "row")
    return Moe(
        experts=experts,
        experts_per_token=config.integer("moe_router_topk", default=2),
        width=width,
        gated=gated,
        activation=activation,
        bias=bias,
        router="sigmoid" if sigmoid else "softmax" if before else "softmax-topk",
        shared_width=shared,
        shared_gate=bool(shared) and gated_share,
        tensors=tensors,
    )


def _latent(config: ConfigReader, hidden: int) -> LatentAttention:
    heads, rank = config.integer("num_attention_heads"), config.optional_integer("q_lora_rank")
    kv_rank, nope, rope, value = (config.integer(name, default=usual) for name, usual in LATENT_DEFAULTS.items())
    bias = False  # multi_latent_attention.py builds its projections without
    module, width = "self_attention", heads * (nope + rope)
    if rank is None:
        query = linear(f"{module}.linear_q_proj", width, hidden, "attention", "column", bias=bias)
    else:
        query = (
            *linear(f"{module}.linear_q_down_proj", rank, hidden, "attention", "none", bias=bias),
            ParameterTensor(f"{module}.q_layernorm.weight", (rank,), "norm"),
            *linear(f"{module}.linear_q_up_proj", width, rank, "attention", "column", bias=bias),
        )
    tensors = (
        *query,
        *linear(f"{module}.linear_kv_down_proj", kv_rank + rope, hidden, "attention", "none", bias=bias),
        ParameterTensor(f"{module}.kv_layernorm.weight", (kv_rank,), "norm"),
        *linear(f"{module}.linear_kv_up_proj", heads * (nope + value), kv_rank, "attention", "column", bias=bias),
        *linear(f"{module}.linear_proj", hidden, heads * value, "attention", "row", bias=bias),
    )
    config.ignore("num_query_groups", "group_query_attention", "kv_channels", "rotary_percent", "qk_layernorm")
    config.ignore("add_qkv_bias")
    if config.flag("attention_output_gate"):
        config.fail("attention_output_gate", "Megatron-core's latent attention has no output gate", "remove it")
    dropout = config.dropout("attention_dropout", default=DROPOUT)
    return LatentAttention(
        heads=heads,
        q_lora_rank=rank,
        kv_lora_rank=kv_rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
        tensors=tensors,
        dropout=dropout,
    )


def _attention(config: ConfigReader, hidden: int) -> Attention:
    heads = config.integer("num_attention_heads")
    width = config.optional_integer("kv_channels") or split_heads(config, hidden, heads)
    groups = config.optional_integer("num_query_groups")
    grouped = config.flag("group_query_attention") and groups is not None
    kv_heads = groups if grouped and groups is not None else heads
    check_groups(config, heads, kv_heads, "num_query_groups")
    bias, qkv_bias = _biased(config), config.flag("add_qkv_bias")
    use_qk_norm = config.flag("qk_layernorm")
    share = config.number("rotary_percent", default=1.0)
    rotary = config.text("position_embedding_type", default="learned_absolute") == "rope"
    return grouped_attention(
        StackDimensions(hidden=hidden, layers=1, heads=heads, kv_heads=kv_heads, head_dim=width, vocab=1, positions=0),
        GATED if config.flag("attention_output_gate") else PROJECTIONS,
        qkv_bias=bias or qkv_bias,
        out_bias=bias,
        rotary_dim=int(width * share) if rotary else 0,
        query_norm=_norm(config, width, "self_attention.q_layernorm") if use_qk_norm else None,
        key_norm=_norm(config, width, "self_attention.k_layernorm") if use_qk_norm else None,
        dropout=config.dropout("attention_dropout", default=DROPOUT),
    )


_TERM = re.compile(r"\[([01](?:\s*,\s*[01])*)\](?:\s*\*\s*(\d{1,5}))?\Z")
"""``[0]*1`` or ``[0,1,1]``."""
_REPEATED = re.compile(r"\((.*)\)(?:\s*\*\s*(\d{1,5}))?\Z")
"""``([1]*3+[0]*1)*3``."""


def _every(n: int, i: int) -> bool:
    return i % n == 0


def _all_but_every(n: int, i: int) -> bool:
    return (i + 1) % n != 0


def _pattern(config: ConfigReader, key: str, layers: int, chosen: Callable[[int, int], bool]) -> list[bool]:
    """``--moe-layer-freq`` or ``--linear-attention-freq``: a number, or a pattern written as ``([0]*1+[1]*3)``."""
    value = config.raw(key)
    if value is None and key == FREQUENCY:
        config.fail(key, f"{key} is not stated, without which Megatron-core builds no delta nets", "state it")
    text = "1" if value is None else str(value).strip()
    number = whole_number(text)
    if number:
        return [chosen(number, i) for i in range(layers)]
    whole = _REPEATED.match(text)
    inner, repeats = (whole[1], int(whole[2] or 1)) if whole is not None else (text, 1)
    found: list[bool] = []
    for part in inner.split("+"):
        term = _TERM.match(part.strip())
        if term is None or max(int(term[2] or 1), repeats) > layers:
            config.fail(key, f"{key} = {text!r} is neither a number nor a sum like ([0]*1+[1]*3)")
        found.extend([digit == "1" for digit in term[1] if digit in "01"] * int(term[2] or 1))
    found *= repeats
    if len(found) != layers:
        config.fail(key, f"{key} describes {len(found)} of {layers} layers")
    return found
