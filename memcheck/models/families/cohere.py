"""Command R, R+ and R7B (modeling_cohere.py, modeling_cohere2.py): parallel halves after one bias-free norm."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    head_norm,
    layer_norm,
    layer_types,
    read_attention,
    read_sizes,
    rms_norm,
    routed,
    sparse_types,
    stack,
    windows,
)
from memcheck.models.module_types import HALF, NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe, Norm

NORM = "layernorm-pieces"


class AveragedMoe(Moe):
    """Experts whose routed and shared outputs are averaged."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: cohere``: with ``use_qk_norm``, every head has weights of its own."""
    size = read_sizes(config)
    use_qk_norm = config.flag("use_qk_norm")
    attention = read_attention(
        config,
        size,
        query_norm=head_norm(NORM, size.head_dim, "q", rows=size.heads) if use_qk_norm else None,
        key_norm=head_norm(NORM, size.head_dim, "k", rows=size.kv_heads) if use_qk_norm else None,
        rotation=HALF._replace(interleaved=True, form="pairs-fp32"),
    )
    return _assemble(config, size, [attention] * size.layers)


def read_2(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: cohere2``: three windowed layers with rotary embedding, then one full layer
    without any.
    """
    size = read_sizes(config, head_dim_key=False)
    window = config.window()
    config.ignore("cache_implementation", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct")
    config.ignore("layer_switch", "use_embedding_sharing", "use_gated_activation", "use_parallel_block")
    config.ignore("use_parallel_embedding")
    period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=4, null=4)
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if (i + 1) % period else "full_attention"
    )
    if window is None and "sliding_attention" in attention_types:
        config.integer("sliding_window")
    attention = read_attention(
        config,
        size,
        rotation=HALF._replace(interleaved=True, form="pairs-fp32"),
    )
    attention_of_window = {
        span: attention._replace(window=span, rotary_dim=size.head_dim if span else 0) for span in (window, None)
    }
    return _assemble(config, size, [attention_of_window[span] for span in windows(attention_types, window)])


def read_moe(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: cohere2_moe``: MoE layers after the first ``first_k_dense_replace`` dense
    ones.

    Sliding-window layers rotate queries and keys. Full-attention layers do not, except dense ones if all of them are
    full.
    """
    size = read_sizes(config, head_dim=128)
    hidden, window = size.hidden, config.window()
    dense_layers = config.integer("first_k_dense_replace", default=0, null=0, minimum=0)
    period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=4, null=4)
    dense_period = config.integer("prefix_dense_sliding_window_pattern", default=1, null=1)
    config.ignore("logit_scale")

    def default_type(i: int) -> str:
        """Return the default attention type of layer ``i``; the leading dense layers have a period of their own."""
        period_of_group, index_in_group = (dense_period, i) if i < dense_layers else (period, i - dense_layers)
        return "sliding_attention" if (index_in_group + 1) % period_of_group else "full_attention"

    attention_types = layer_types(config, size.layers, default_type)
    attention = read_attention(
        config,
        size,
        rotation=HALF._replace(interleaved=True, form="pairs-fp32"),
    )
    moe = _experts(config, hidden)
    moe_layers = sparse_types(config, size.layers, dense_layers)
    width = config.optional_integer("prefix_dense_intermediate_size") or moe.width
    mlp = gated_mlp(hidden, width, moe.activation)
    layernorm = config.raw("rms_norm_eps") is None

    def norm(name: str) -> Norm:
        """LayerNorm without bias, or RMSNorm where the configuration has ``rms_norm_eps``."""
        return layer_norm(hidden, name, bias=False, kind=NORM) if layernorm else rms_norm(hidden, name)

    def build_layer(kind: tuple[str, bool]) -> Block:
        """Build one layer. ``kind``: its attention type, and whether it has experts."""
        attention_type, has_experts = kind
        span = window if attention_type == "sliding_attention" else None
        rotates = span is not None or (not has_experts and dense_period == 1)
        mixer = attention._replace(window=span, rotary_dim=size.head_dim if rotates else 0)
        return Block(
            mixer=mixer,
            mlp=moe if has_experts else mlp,
            input_norm=norm("input_layernorm"),
            mlp_norm=None,
            parallel=True,
        )

    blocks = stack(zip(attention_types, moe_layers, strict=True), build_layer)
    return decoder(
        config, size, blocks, tied=True, final_norm=norm("model.norm"), logit_scale=True, mask_windows=(None, window)
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build routed experts, with ``num_shared_experts`` shared ones, whose output is summed or averaged with the routed
    one.
    """
    width, shared_experts = (
        config.integer("intermediate_size"),
        config.integer("num_shared_experts", default=0, minimum=0),
    )
    selection = config.text("expert_selection_fn", default="softmax")
    if selection not in ("softmax", "sigmoid"):
        config.fail("expert_selection_fn", f"unknown expert_selection_fn {selection!r}", "known: softmax, sigmoid")
    combination = config.text("shared_expert_combination_strategy", default="average")
    if combination not in ("sum", "average"):
        config.fail("shared_expert_combination_strategy", f"unknown strategy {combination!r}", "known: sum, average")
    moe = routed(
        hidden,
        (config.integer("num_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        width,
        config.activation(),
        SharedExperts(shared_experts * width, gate=False, runs_first=False),
        router="softmax-fp32-topk" if selection == "softmax" else "sigmoid-topk",
        routing=NORMALISED_SCORES._replace(normalised=config.flag("norm_topk_prob", default=True)),
    )
    return AveragedMoe(*moe) if combination == "average" else moe


def _assemble(config: ConfigReader, size: StackDimensions, attentions: list[Attention]) -> Architecture:
    """Build a decoder whose attention and MLP read the same norm and are added. ``attentions``: one per layer."""
    hidden = size.hidden
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), config.activation())
    norm = layer_norm(hidden, "input_layernorm", bias=False, kind=NORM)

    def build_layer(attention: Attention) -> Block:
        return Block(mixer=attention, mlp=mlp, input_norm=norm, mlp_norm=None, parallel=True)

    config.ignore("logit_scale")
    final_norm = layer_norm(hidden, "model.norm", bias=False, kind=NORM)
    return decoder(config, size, stack(attentions, build_layer), tied=True, final_norm=final_norm, logit_scale=True)
