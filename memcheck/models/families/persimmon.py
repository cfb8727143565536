"""Persimmon (modeling_persimmon.py): one matrix for queries, keys and values head by head, LayerNorms on both."""

from __future__ import annotations

from memcheck.models.parts.attention import Projections, grouped_attention
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.feed_forward import plain_mlp
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Norm

PROJECTIONS = Projections(("query_key_value",), "dense")


def read(config: ConfigReader) -> Architecture:
    """``model_type: persimmon``."""
    size = read_sizes(config, kv_heads="none", head_dim_key=False)
    h, normed = size.hidden, config.flag("qk_layernorm", default=True)
    query, key = (Norm("layernorm", size.head_dim, bias=True, name=f"self_attn.{w}_layernorm") for w in "qk")
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.5)),
        query_norm=query if normed else None,
        key_norm=key if normed else None,
        fused_form="parts",
        rotary_form="cat",
        named_rotary=True,
        dropout=config.dropout("attention_dropout"),
    )
    activation, width = config.activation(default="relu2"), config.integer("intermediate_size")
    mlp = plain_mlp(h, width, activation, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True)
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(h, "input_layernorm"),
        mlp_norm=layer_norm(h, "post_attention_layernorm"),
    )
    dropout = config.dropout("hidden_dropout")
    if dropout:
        config.fail("hidden_dropout", "memcheck has no model of this family's dropout", "write hidden_dropout: 0.0")
    final = layer_norm(h, "model.final_layernorm")
    return decoder(config, size, ((block, size.layers),), tied=False, final_norm=final, rotary_dim=attention.rotary_dim)
