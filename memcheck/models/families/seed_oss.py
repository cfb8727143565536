"""Seed-OSS (modeling_seed_oss.py): Llama with biases on q, k and v, and dropout after each half."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, grouped_attention, pre_norm_block, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: seed_oss``. Both dropouts are 0.1 unless stated, as in the class."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    attention = grouped_attention(
        size,
        qkv_bias=config.flag("attention_bias", default=True),
        out_bias=config.flag("attention_out_bias"),
        dropout=config.dropout("attention_dropout", default=0.1),
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), bias=config.flag("mlp_bias"))
    block = pre_norm_block(size.hidden, attention, mlp, dropout=config.dropout("residual_dropout", default=0.1))
    return decoder(config, size, ((block._replace(dropout_place="inner"), size.layers),), tied=False)
