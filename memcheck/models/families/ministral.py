"""Ministral 8B and Ministral 3 (modeling_ministral.py, modeling_ministral3.py): Mistral with its own windows."""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    grouped_attention,
    layer_types,
    pre_norm_block,
    read_sizes,
    stack,
    windows,
)
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: ministral``: a window in the layers that ``layer_types`` names."""
    size = read_sizes(config, kv_heads="required")
    attention = grouped_attention(size, dropout=config.dropout("attention_dropout"))
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation())
    window = config.window()
    default_type = "full_attention" if window is None else "sliding_attention"
    spans = windows(layer_types(config, size.layers, lambda _: default_type), window)

    def build_layer(span: int | None) -> Block:
        return pre_norm_block(size.hidden, attention._replace(window=span), mlp)

    return decoder(config, size, stack(spans, build_layer), tied=False, mask_windows=(None, window))


def read_3(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: ministral3``: rotated queries are scaled by their position (Llama 4's
    temperature).
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    attention = grouped_attention(
        size, window=config.window(), query_scale="position", dropout=config.dropout("attention_dropout")
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation())
    block = pre_norm_block(size.hidden, attention, mlp)
    return decoder(config, size, ((block, size.layers),), tied=False)
