"""Qwen 1.5/2 MoE, Qwen 3 MoE and Mellum (modeling_qwen2_moe.py, modeling_qwen3_moe.py, modeling_mellum.py)."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    grouped_attention,
    layer_types,
    pre_norm_block,
    read_sizes,
    routed,
    sparse_types,
    stack,
    windows,
)
from memcheck.models.families.deepseek import note_mtp_layers
from memcheck.models.families.qwen import qk_norm_attention
from memcheck.models.module_types import NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Mlp, Moe


def read_2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: qwen2_moe``: one gated shared expert in addition to the routed ones."""
    size = read_sizes(config, kv_heads="required")
    attention = grouped_attention(size, qkv_bias=config.flag("qkv_bias", default=True))
    window = config.window()
    if not config.flag("use_sliding_window"):
        window = None
    max_window_layers = config.integer("max_window_layers", default=28, null=28, minimum=0)
    # configuration_qwen2_moe.py: every second layer, and only below max_window_layers
    attention_types = layer_types(
        config,
        size.layers,
        lambda i: "sliding_attention" if window and i % 2 == 0 and i < max_window_layers else "full_attention",
    )
    shared_width = config.integer("shared_expert_intermediate_size")
    # Qwen2MoeModel.forward makes both masks; without windows, the configuration's window is 0
    return _assemble(config, size, attention, windows(attention_types, window), shared_width)._replace(
        mask_windows=(None, window or 0)
    )


def read_3(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: qwen3_moe``: no shared expert; ``num_local_experts`` is the class's own
    alias.
    """
    size = read_sizes(config, kv_heads="required")
    window = config.window()
    if not config.flag("use_sliding_window"):
        window = None
    config.ignore("max_window_layers")
    return _assemble(config, size, qk_norm_attention(config, size), [window] * size.layers, 0)


def read_mellum(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mellum``: Qwen 3's experts, windows and dense layers by lists."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    window = config.window()
    attention_types = layer_types(config, size.layers, lambda _: "full_attention")
    config.ignore("mtp_layer_types", "mtp_mlp_layer_types")
    note_mtp_layers(config)
    attention = qk_norm_attention(config, size)._replace(dropout=config.dropout("attention_dropout"))
    moe = routed(
        size.hidden,
        (config.integer("num_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        config.activation(),
        experts_first=True,
        routing=NORMALISED_SCORES._replace(normalised=config.flag("norm_topk_prob", default=True)),
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), moe.activation)
    moe_layers = sparse_types(config, size.layers, 0)

    def build_layer(kind: tuple[bool, int | None]) -> Block:
        """Build one layer. ``kind``: whether it has experts, and its window in tokens (None: full attention)."""
        has_experts, layer_window = kind
        return pre_norm_block(size.hidden, attention._replace(window=layer_window), moe if has_experts else mlp)

    blocks = stack(zip(moe_layers, windows(attention_types, window), strict=True), build_layer)
    return decoder(
        config, size, blocks, tied=False, rotary_tables=len(set(attention_types)), mask_windows=(None, window)
    )


def layers_with_experts(config: ConfigReader, layers: int) -> list[bool]:
    """Say for each layer whether it has experts: every ``decoder_sparse_step``-th, except ``mlp_only_layers``."""
    period = config.integer("decoder_sparse_step", default=1, null=1)
    mlp_only_layers = set(config.integers("mlp_only_layers") or ())
    return [(i + 1) % period == 0 and i not in mlp_only_layers for i in range(layers)]


def _assemble(
    config: ConfigReader, size: StackDimensions, attention: Attention, spans: list[int | None], shared_width: int
) -> Architecture:
    """Build a decoder of MoE layers, except those that :func:`layers_with_experts` leaves dense.

    ``spans``: window of each layer in tokens; None for full attention. ``shared_width``: of the shared expert; 0 for
    none.
    """
    attention = attention._replace(dropout=config.dropout("attention_dropout"))
    activation = config.activation()
    aliases = () if shared_width else ("num_local_experts",)
    moe_layers = layers_with_experts(config, size.layers)
    moe = routed(
        size.hidden,
        (config.integer("num_experts", *aliases), config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        activation,
        SharedExperts(shared_width, gate=bool(shared_width), runs_first=False),
        names=("gate", "shared_expert"),
        experts_first=not shared_width,
        # Qwen 3's class default is false, but every released model says true: its absence is taken as that
        routing=NORMALISED_SCORES._replace(normalised=config.flag("norm_topk_prob", default=not shared_width)),
    )
    if all(moe_layers):
        config.ignore("intermediate_size")
        dense = None
    else:
        dense = gated_mlp(size.hidden, config.integer("intermediate_size"), activation)

    def build_layer(kind: tuple[bool, int | None]) -> Block:
        """Build one layer. ``kind``: whether it has experts, and its window in tokens (None: full attention)."""
        has_experts, layer_window = kind
        feed_forward: Mlp | Moe = moe if has_experts or dense is None else dense
        return pre_norm_block(size.hidden, attention._replace(window=layer_window), feed_forward)

    return decoder(config, size, stack(zip(moe_layers, spans, strict=True), build_layer), tied=False)
