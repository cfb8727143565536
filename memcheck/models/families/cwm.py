"""Code World Model (modeling_cwm.py): Llama with three windowed layers to one full layer."""

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
    """Read a configuration of ``model_type: cwm``.

    Llama's layers, of which every fourth has full attention and the others a sliding window.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    attention = grouped_attention(size, dropout=config.dropout("attention_dropout"))
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), bias=config.flag("mlp_bias"))
    window = config.window()
    attention_types = layer_types(config, size.layers, lambda i: "sliding_attention" if i % 4 else "full_attention")

    def build_layer(span: int | None) -> Block:
        return pre_norm_block(size.hidden, attention._replace(window=span), mlp)

    return decoder(
        config, size, stack(windows(attention_types, window), build_layer), tied=False, mask_windows=(None, window)
    )
