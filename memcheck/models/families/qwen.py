"""Qwen 2, 2.5 and 3, dense (modeling_qwen2.py, modeling_qwen3.py)."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    grouped_attention,
    head_norms,
    layer_types,
    pre_norm_block,
    read_sizes,
    stack,
    windows,
)
from memcheck.models.families.llama import intermediate_size
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block


def read_2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: qwen2``: biases on q, k and v, always."""
    size = read_sizes(config, kv_heads="required")
    return _assemble(config, size, grouped_attention(size, qkv_bias=True))


def read_3(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: qwen3``: RMSNorm on each head's query and key."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    return _assemble(config, size, qk_norm_attention(config, size))


def read_molmo2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: molmo2_text``: Qwen 3 with more rows in its table, and two rotary tables
    (modeling_molmo2.py).
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    if config.text("qk_norm_type", default="qwen3") != "qwen3":
        config.fail("qk_norm_type", "only norms of each head have a memory model: qwen3")
    config.refuse("norm_after", "memcheck has no memory model of norms after attention and MLP")
    config.ignore("rope_scaling_layers", "embedding_dropout", "residual_dropout", "use_qk_norm", "attn_implementation")
    config.ignore("layer_norm_eps")
    bias = config.flag("attention_bias", "qkv_bias")
    attention = grouped_attention(size, qkv_bias=bias, **head_norms("rmsnorm", size.head_dim))
    attention = attention._replace(dropout=config.dropout("attention_dropout"))
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation())
    block = pre_norm_block(size.hidden, attention, mlp)
    additional_vocab = config.integer("additional_vocab_size", default=128, minimum=0)
    return decoder(config, size, ((block, size.layers),), tied=False, extra_rows=additional_vocab, rotary_tables=2)


def qk_norm_attention(config: ConfigReader, size: StackDimensions) -> Attention:
    """Build Qwen 3's attention: grouped-query, with an RMSNorm on each head's query and key."""
    bias = config.flag("attention_bias")
    return grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        **head_norms("rmsnorm", size.head_dim),
    )


def qwen_windows(config: ConfigReader, layers: int) -> list[int | None]:
    """Return the sliding window of each layer in tokens; None for full attention."""
    window = config.window()
    if not config.flag("use_sliding_window"):
        window = None
    first_sliding = config.integer("max_window_layers", default=28, null=28, minimum=0)
    sliding_type = "full_attention" if window is None else "sliding_attention"
    return windows(
        layer_types(config, layers, lambda i: sliding_type if i >= first_sliding else "full_attention"), window
    )


def _assemble(config: ConfigReader, size: StackDimensions, attention: Attention) -> Architecture:
    """Build a decoder of pre-norm layers, each with the window that :func:`qwen_windows` gives it."""
    attention = attention._replace(dropout=config.dropout("attention_dropout"))
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation())

    def build_layer(window: int | None) -> Block:
        """Build one layer. ``window``: in tokens; None for full attention."""
        return pre_norm_block(size.hidden, attention._replace(window=window), mlp)

    return decoder(config, size, stack(qwen_windows(config, size.layers), build_layer), tied=False)
