"""EXAONE 4 and its routed relative (modeling_exaone4.py, modeling_exaone_moe.py): windowed layers alone rotate."""

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
    rms_norm,
    sparse_types,
    stack,
)
from memcheck.models.families.deepseek import sigmoid_experts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: exaone4``: norms after each half, none in front."""
    size = read_sizes(config, kv_heads="required")
    window, attention_types = _attention_types(config, size)
    attention = _attention(config, size)
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation())

    def build_layer(kind: str) -> Block:
        """Build one layer. ``kind``: its attention type."""
        return Block(
            mixer=_layer_attention(attention, kind, window),
            mlp=mlp,
            input_norm=None,
            mlp_norm=None,
            mixer_output_norm=rms_norm(size.hidden, "post_attention_layernorm"),
            mlp_output_norm=rms_norm(size.hidden, "post_feedforward_layernorm"),
        )

    return decoder(
        config,
        size,
        stack(attention_types, build_layer),
        tied=False,
        mask_windows=_mask_windows(attention_types, window),
    )


def read_moe(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: exaone_moe``: norms in front, DeepSeek V3's experts after the first
    layers.
    """
    size = read_sizes(config, kv_heads="required")
    window, attention_types = _attention_types(config, size)
    attention = _attention(config, size)
    moe = sigmoid_experts(config, size.hidden, "num_experts", "num_shared_experts")
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), moe.activation)
    moe_layers = sparse_types(config, size.layers, config.integer("first_k_dense_replace", default=1, minimum=0))

    def build_layer(kind: tuple[str, bool]) -> Block:
        """Build one layer. ``kind``: its attention type, and whether it has experts."""
        attention_type, has_experts = kind
        return pre_norm_block(
            size.hidden, _layer_attention(attention, attention_type, window), moe if has_experts else mlp
        )

    blocks = stack(zip(attention_types, moe_layers, strict=True), build_layer)
    return decoder(config, size, blocks, tied=False, mask_windows=_mask_windows(attention_types, window))


def _attention_types(config: ConfigReader, size: StackDimensions) -> tuple[int | None, tuple[str, ...]]:
    """Return the sliding window in tokens (None: none), and the attention type of every layer.

    ``sliding_window_pattern`` is a period, or a word such as ``LLLG`` whose length is the period.
    """
    window = config.window()
    period = config.raw("sliding_window_pattern")
    if isinstance(period, str):  # EXAONE 4's own files write it in letters: LLLG
        period = len(period)
    elif period is not None:
        period = config.integer("sliding_window_pattern", minimum=0)
    period = 4 if period is None else period

    def default_type(i: int) -> str:
        """Default attention type of layer ``i``: every ``period``-th one is full."""
        return "sliding_attention" if window is not None and period and (i + 1) % period else "full_attention"

    return window, layer_types(config, size.layers, default_type)


def _mask_windows(types: tuple[str, ...], window: int | None) -> tuple[int | None, ...]:
    """List the windows of the attention masks that the model builds: None for full attention, or tokens.

    It builds a mask for sliding windows only if a layer has one.
    """
    return (None, window) if "sliding_attention" in types else (None,)


def _layer_attention(attention: Attention, kind: str, window: int | None) -> Attention:
    """Build a layer's attention: sliding-window layers rotate queries and keys; so do all layers where there is no
    window.
    """
    if kind == "sliding_attention":
        return attention._replace(window=window)
    return attention if window is None else attention._replace(rotary_dim=0)


def _attention(config: ConfigReader, size: StackDimensions) -> Attention:
    """Build grouped-query attention with an RMSNorm on the queries and keys of each head."""
    return grouped_attention(
        size,
        **head_norms("rmsnorm", size.head_dim),
        dropout=config.dropout("attention_dropout"),
    )
