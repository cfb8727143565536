"""Step 3.7, text (modeling_step3p7.py): gates of each head, activations clamped everywhere, sigmoid experts and a
shared one.
"""

from __future__ import annotations

from memcheck.edge.screen import whole_number
from memcheck.models.decoder import (
    StackDimensions,
    check_groups,
    decoder,
    gated_mlp,
    grouped_attention,
    head_norms,
    layer_types,
    linear,
    pre_norm_block,
    read_sizes,
    rms_norm,
    rotary_share,
    routed,
    sparse_types,
    stack,
)
from memcheck.models.families.deepseek import note_mtp_layers
from memcheck.models.families.minimax_m3 import NORM
from memcheck.models.module_types import NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe

DEFAULT_DENSE_LAYERS = 3
"""Layers without experts, where the configuration is silent."""
SLIDING = "sliding_attention"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: step3p5``, which Step 3.7 calls its language model."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    hidden, window = size.hidden, config.window()
    config.ignore("query_pre_attn_scalar", "swiglu_limits", "swiglu_limits_shared", "hidden_act", "per_layer_config")
    config.ignore("moe_router_scaling_factor", "mtp_layer_types", "mtp_mlp_layer_types")
    note_mtp_layers(config)
    attention_types = layer_types(config, size.layers, lambda i: "full_attention")
    other_setting = config.section("attention_other_setting")
    other_setting.ignore("attention_type", "num_attention_groups", "head_dim", "true_head_dim")
    default_sliding_heads = other_setting.integer("num_attention_heads", default=size.heads)
    sliding_heads = config.integer(
        "num_sliding_attention_heads", default=default_sliding_heads, null=default_sliding_heads
    )
    check_groups(config, sliding_heads, size.kv_heads, "num_sliding_attention_heads")
    rotary_fractions = config.raw("partial_rotary_factors") or [1.0] * size.layers  # of each layer, in the hub's files
    if not isinstance(rotary_fractions, list) or len(rotary_fractions) < size.layers:
        config.fail("partial_rotary_factors", f"partial_rotary_factors is no list of {size.layers} shares")
    rotary_dims = {
        kind: int(size.head_dim * rotary_share(config, kind, rotary_fractions[attention_types.index(kind)]))
        for kind in sorted(set(attention_types))
    }
    bias, dropout = config.flag("attention_bias"), config.dropout("attention_dropout")
    config.refuse("mlp_bias", "biases of the clamped networks have no memory model", "write false")
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), "silu")._replace(clamp="acted")
    moe = _experts(config, hidden)

    def build_layer(kind: tuple[str, bool]) -> Block:
        """Build one layer. ``kind``: its attention type, and whether it has experts."""
        attention_type, has_experts = kind
        slides = attention_type == SLIDING
        layer_size = size._replace(heads=sliding_heads if slides else size.heads)
        attention = _attention(layer_size, rotary_dims[attention_type], bias=bias)
        attention = attention._replace(window=window if slides else None, dropout=dropout)
        return pre_norm_block(hidden, attention, moe if has_experts else mlp, kind=NORM)

    return decoder(
        config,
        size,
        stack(zip(attention_types, _moe_layers(config, size.layers), strict=True), build_layer),
        tied=False,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        rotary_tables=tuple(rotary_dims.values()) or 0,
    )


def _moe_layers(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Say for each layer whether it has experts.

    Source: ``mlp_layer_types``, or ``moe_layers_enum`` in the hub's files.
    """
    moe_layers_enum = config.raw("moe_layers_enum")
    if moe_layers_enum is None or config.has("mlp_layer_types"):
        return sparse_types(config, layers, DEFAULT_DENSE_LAYERS)
    listed = moe_layers_enum.split(",") if isinstance(moe_layers_enum, str) else moe_layers_enum
    moe_layers = {whole_number(str(item).strip()) for item in listed} if isinstance(listed, list) else {None}
    if None in moe_layers:
        config.fail("moe_layers_enum", "moe_layers_enum is no list of layers")
    return tuple(i in moe_layers for i in range(layers))


def _attention(size: StackDimensions, rotary_dim: int, *, bias: bool) -> Attention:
    """Build grouped-query attention with a gate for each head, and a norm on each head's query and key."""
    return grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=rotary_dim,
        **head_norms(NORM, size.head_dim),
        gate_matrix="adaptable",
        tensors=linear("self_attn.g_proj", size.heads, size.hidden, "attention", "column"),
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build routed experts, one after the other in a loop, with one shared expert; their gates are clamped."""
    return routed(
        hidden,
        (
            config.integer("n_routed_experts", "num_local_experts", "moe_num_experts", default=288),
            config.integer("num_experts_per_tok", "moe_top_k"),
        ),
        config.integer("moe_intermediate_size"),
        "silu",
        SharedExperts(config.integer("share_expert_dim", "share_expert_dims"), gate=False, runs_first=True),
        router="sigmoid",
        routing=NORMALISED_SCORES._replace(scores_fp32=True),
        scaled_output=True,
        clamp="acted",
    )._replace(looped=True)
