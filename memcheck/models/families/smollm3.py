"""SmolLM 3 (modeling_smollm3.py): Llama with every fourth layer free of rotary embedding."""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    layer_types,
    pre_norm_block,
    read_attention,
    read_sizes,
    rotary_layers,
    stack,
    windows,
)
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: smollm3``: Llama's layers, of which every fourth does not rotate queries
    and keys.
    """
    size = read_sizes(config, kv_heads="required")
    window = config.window()
    if not config.flag("use_sliding_window"):
        window = None
    config.ignore("max_window_layers")
    rotated = rotary_layers(config, size.layers, 4)
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if window and not rotated[i] else "full_attention"
    )
    attention = read_attention(config, size)
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), bias=config.flag("mlp_bias"))

    def build_layer(kind: tuple[bool, int | None]) -> Block:
        """Build one layer. ``kind``: whether it rotates queries and keys, and its window in tokens (None: full)."""
        is_rotated, layer_window = kind
        rotary_dim = size.head_dim if is_rotated else 0
        return pre_norm_block(size.hidden, attention._replace(rotary_dim=rotary_dim, window=layer_window), mlp)

    blocks = stack(zip(rotated, windows(attention_types, window), strict=True), build_layer)
    return decoder(config, size, blocks, tied=True)
