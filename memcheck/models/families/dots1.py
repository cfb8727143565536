"""dots.llm1 (modeling_dots1.py): Qwen 3's attention, DeepSeek V3's experts after the first layers."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, layer_types, pre_norm_block, read_sizes, stack, windows
from memcheck.models.families.deepseek import sigmoid_experts
from memcheck.models.families.qwen import qk_norm_attention
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: dots1``: norms of queries and keys, sliding windows in later layers,
    sigmoid-routed experts.
    """
    size = read_sizes(config, kv_heads="required")
    hidden = size.hidden
    attention = qk_norm_attention(config, size)._replace(dropout=config.dropout("attention_dropout"))
    window = config.window()
    first_sliding = config.integer("max_window_layers", default=size.layers, null=size.layers, minimum=0)
    sliding = "full_attention" if window is None else "sliding_attention"
    window_sizes = windows(
        layer_types(config, size.layers, lambda i: sliding if i >= first_sliding else "full_attention"), window
    )
    moe = sigmoid_experts(config, hidden, "n_routed_experts", "n_shared_experts", aliases=("num_local_experts",))
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), moe.activation)
    dense_layers = config.integer("first_k_dense_replace", minimum=0)

    def build_layer(kind: tuple[bool, int | None]) -> Block:
        """Build one layer. ``kind``: whether it has experts, and its window in tokens (None: full attention)."""
        has_experts, layer_window = kind
        return pre_norm_block(hidden, attention._replace(window=layer_window), moe if has_experts else mlp)

    return decoder(
        config,
        size,
        stack(((i >= dense_layers, window_size) for i, window_size in enumerate(window_sizes)), build_layer),
        tied=False,
    )
