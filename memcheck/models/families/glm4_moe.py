"""GLM 4.5 (modeling_glm4_moe.py): grouped attention, DeepSeek V3's router and shared expert, dense first layers."""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    grouped_attention,
    head_norm,
    pre_norm_block,
    read_sizes,
    routed,
    stack,
)
from memcheck.models.families.deepseek import note_mtp_layers
from memcheck.models.module_types import NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: glm4_moe``."""
    return _read(config, bias=config.flag("attention_bias"))


def read_v(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: glm4v_moe_text``: biases of q, k and v unless stated
    (modeling_glm4v_moe.py).
    """
    return _read(config, bias=config.flag("attention_bias", default=True))


def _read(config: ConfigReader, *, bias: bool) -> Architecture:
    """Read a configuration of GLM 4.5: grouped-query attention, and DeepSeek V3's experts after
    ``first_k_dense_replace`` dense layers.
    """
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    size = read_sizes(config, kv_heads="required", head_dim=max(1, hidden // heads))  # rounded down, as in the class
    config.ignore("n_group", "topk_group")
    use_qk_norm = config.flag("use_qk_norm")
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.5)),
        query_norm=head_norm("rmsnorm", size.head_dim, "q") if use_qk_norm else None,
        key_norm=head_norm("rmsnorm", size.head_dim, "k") if use_qk_norm else None,
        dropout=config.dropout("attention_dropout"),
    )
    activation = config.activation()
    width = config.integer("moe_intermediate_size")
    moe = routed(
        size.hidden,
        (config.integer("n_routed_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        width,
        activation,
        SharedExperts(config.integer("n_shared_experts", minimum=0) * width, gate=False, runs_first=False),
        experts_first=True,
        router="sigmoid",
        routing=NORMALISED_SCORES._replace(
            input_fp32=True, scores_fp32=True, normalised=config.flag("norm_topk_prob", default=True)
        ),
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), activation)
    dense_layers = config.integer("first_k_dense_replace", minimum=0)
    note_mtp_layers(config)

    def build_layer(has_experts: bool) -> Block:
        return pre_norm_block(size.hidden, attention, moe if has_experts else mlp)

    blocks = stack((i >= dense_layers for i in range(size.layers)), build_layer)
    return decoder(config, size, blocks, tied=False, rotary_dim=attention.rotary_dim)
