"""DBRX (modeling_dbrx.py): fused qkv with clamping, sixteen experts in flat matrices."""

from __future__ import annotations

from memcheck.models.decoder import (
    Names,
    Projections,
    check_groups,
    decoder,
    grouped_attention,
    layer_norm,
    linear,
    read_sizes,
)
from memcheck.models.reader import REQUIRED, ConfigReader
from memcheck.models.types import Architecture, Block, Moe, ParameterTensor, Paths

NAMES = Names(
    hidden=("d_model", "hidden_size"),
    layers=("n_layers", "num_hidden_layers"),
    heads=("n_heads", "num_attention_heads"),
    positions=("max_seq_len", "max_position_embeddings"),
)
PROJECTIONS = Projections(("Wqkv",), "out_proj", "norm_attn_norm.attn")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: dbrx``: one matrix for q, k and v, which may be clipped, and experts in
    every layer.
    """
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False)
    hidden = size.hidden
    config.ignore("emb_pdrop")
    attention_config = config.section("attn_config")
    attention_config.ignore("rope_theta", "rope_type", "attn_type")
    kv_heads = attention_config.integer("kv_n_heads", default=REQUIRED)
    check_groups(attention_config, size.heads, kv_heads, "kv_n_heads")
    attention = grouped_attention(
        size._replace(kv_heads=kv_heads),
        PROJECTIONS,
        dropout=attention_config.dropout("attn_pdrop"),
        clip_qkv=attention_config.number("clip_qkv", default=0.0) > 0,
    )
    norm_1 = layer_norm(hidden, "norm_attn_norm.norm_1", bias=False)
    norm_2 = layer_norm(hidden, "norm_attn_norm.norm_2", bias=False)
    dropout = config.dropout("resid_pdrop")
    block = Block(mixer=attention, mlp=_experts(config, hidden), input_norm=norm_1, mlp_norm=norm_2, dropout=dropout)
    config.refuse("tie_word_embeddings", "transformers refuses tie_word_embeddings for DBRX")
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=False,
        final_norm=layer_norm(hidden, "transformer.norm_f", bias=False),
        paths=Paths("transformer.blocks", "transformer.wte", positions="", head="lm_head"),
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build routed experts from ``ffn_config``; all experts' matrices are stacked as rows of one matrix, [experts *
    width, hidden].
    """
    ffn_config = config.section("ffn_config")
    ffn_config.ignore("moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment")
    ffn_config.ignore("ffn_type", "hidden_size")
    width, experts = ffn_config.integer("ffn_hidden_size"), ffn_config.integer("moe_num_experts")
    activation = ffn_config.section("ffn_act_fn").activation("name")
    stacked_shape = (experts * width, hidden)
    tensors = (
        *linear("ffn.router.layer", experts, hidden, "router", "none"),
        ParameterTensor("ffn.experts.mlp.w1", stacked_shape, "experts", shard="column"),
        ParameterTensor("ffn.experts.mlp.v1", stacked_shape, "experts", shard="column"),
        ParameterTensor("ffn.experts.mlp.w2", stacked_shape, "experts", shard="row", transposed=True),
    )
    return Moe(
        experts,
        ffn_config.integer("moe_top_k"),
        width,
        gated=True,
        activation=activation,
        tensors=tensors,
        looped=True,
        bias=False,
        router="softmax",
    )
