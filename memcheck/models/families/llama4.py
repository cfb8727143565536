"""Llama 4's language model (modeling_llama4.py): chunked attention, experts that are given every token."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    gated_tensors,
    head_norms,
    layer_types,
    linear,
    pre_norm_block,
    read_attention,
    read_sizes,
    rotary_layers,
    stack,
    stacked_experts,
    windows,
)
from memcheck.models.module_types import EAGER, HALF, KERNELS, NORMALISED_SCORES, DenseDispatchMoe, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe

MODULE = "feed_forward"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: llama4_text``.

    Chunked attention with rotation, full attention without it, and routed layers with a shared expert.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    config.ignore("attn_scale", "attn_temperature_tuning", "floor_scale", "for_llm_compressor")
    activation = config.activation()
    moe = _experts(config, size.hidden, activation)
    routed_layers = _routed_layers(config, size.layers)
    if all(routed_layers):
        config.ignore("intermediate_size_mlp")
        mlp = None
    else:
        mlp = gated_mlp(size.hidden, config.integer("intermediate_size_mlp"), activation, module=MODULE)
    rotated = rotary_layers(config, size.layers, 4)
    chunk = config.integer("attention_chunk_size", default=8192, null=0, minimum=0) or None
    attention_types = layer_types(
        config, size.layers, lambda i: "chunked_attention" if rotated[i] else "full_attention"
    )
    without_norms, rotated_attention = _attentions(config, size)

    def build_layer(kind: tuple[bool, bool, int | None]) -> Block:
        """Build one layer. ``kind``: whether it has experts, whether it rotates, and its chunk in tokens
        (None: full).
        """
        is_routed, rotates, window = kind
        attention = rotated_attention if rotates else without_norms._replace(rotary_dim=0)
        feed_forward = moe if is_routed or mlp is None else mlp
        return pre_norm_block(size.hidden, attention._replace(window=window), feed_forward)

    kinds = zip(routed_layers, rotated, windows(attention_types, chunk), strict=True)
    return decoder(config, size, stack(kinds, build_layer), tied=False)


def _attentions(config: ConfigReader, size: StackDimensions) -> tuple[Attention, Attention]:
    """Build the attention without norms, and the attention of layers that rotate.

    With ``use_qk_norm`` the latter normalises queries and keys, without weights; else both are the same. The caller
    takes the rotation from the first for layers that do not rotate, and sets the window of each layer.
    """
    without_norms = read_attention(
        config,
        size,
        rotation=HALF._replace(interleaved=True, form="complex"),
        kernels=KERNELS._replace(flash=False),
        chunked_window=True,  # has no effect on layers without a window
        eager=EAGER._replace(softmax_fp32=False),
    )
    if not config.flag("use_qk_norm", default=True):
        return without_norms, without_norms
    return without_norms, without_norms._replace(**head_norms("l2", size.head_dim, weight=False))


def _routed_layers(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Say for each layer whether it has experts: ``moe_layers``, or every ``interleave_moe_layer_step``-th layer."""
    period = config.integer("interleave_moe_layer_step", default=1, null=1)
    moe_layers = config.integers("moe_layers")
    if moe_layers is None:
        return tuple((i + 1) % period == 0 for i in range(layers))
    return tuple(i in set(moe_layers) for i in range(layers))


def _experts(config: ConfigReader, hidden: int, activation: str) -> Moe:
    """Build experts with one shared expert; every expert multiplies all tokens (``Llama4TextExperts``), zeros where it
    is not chosen.
    """
    experts, width = config.integer("num_local_experts"), config.integer("intermediate_size")
    tensors = (
        *stacked_experts(f"{MODULE}.experts", experts, hidden, width, transposed=True),
        *linear(f"{MODULE}.router", experts, hidden, "router", "none"),
        *gated_tensors(f"{MODULE}.shared_expert", hidden, width, "shared_experts"),
    )
    return DenseDispatchMoe(
        experts,
        config.integer("num_experts_per_tok"),
        width,
        gated=True,
        activation=activation,
        router="sigmoid",
        shared=SharedExperts(width, gate=False, runs_first=False),
        tensors=tensors,
        routing=NORMALISED_SCORES._replace(normalised=False),
        bias=False,
    )
