"""Command R, R+ and R7B (modeling_cohere.py, modeling_cohere2.py): parallel halves after one bias-free norm."""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, layer_norm, rms_norm
from memcheck.models.parts.feed_forward import Shared, gated_mlp, routed
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.parts.stack import layer_types, sparse_types, stack, windows
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe, Norm

NORM = "layernorm-pieces"


class AveragedMoe(Moe):
    """Experts whose routed and shared outputs are averaged."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: cohere``: with ``use_qk_norm``, every head has weights of its own."""
    size = read_sizes(config)
    normed = config.flag("use_qk_norm")
    bias = config.flag("attention_bias")
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        query_norm=head_norm(NORM, size.head_dim, "q", rows=size.heads) if normed else None,
        key_norm=head_norm(NORM, size.head_dim, "k", rows=size.kv_heads) if normed else None,
        rotary_interleaved=True,
        rotary_form="pairs-fp32",
        dropout=config.dropout("attention_dropout"),
    )
    return _assemble(config, size, [attention] * size.layers)


def read_2(config: ConfigReader) -> Architecture:
    """``model_type: cohere2``: three windowed layers with rotary embedding, then one full layer without any."""
    size = read_sizes(config, head_dim_key=False)
    bias = config.flag("attention_bias")
    window = config.window()
    config.ignore("cache_implementation", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct")
    config.ignore("layer_switch", "use_embedding_sharing", "use_gated_activation", "use_parallel_block")
    config.ignore("use_parallel_embedding")
    period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=4, null=4)
    types = layer_types(config, size.layers, lambda i: "sliding_attention" if (i + 1) % period else "full_attention")
    if window is None and "sliding_attention" in types:
        config.integer("sliding_window")
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        rotary_interleaved=True,
        rotary_form="pairs-fp32",
        dropout=config.dropout("attention_dropout"),
    )
    variants = {w: attention._replace(window=w, rotary_dim=size.head_dim if w else 0) for w in (window, None)}
    return _assemble(config, size, [variants[w] for w in windows(types, window)])


def read_moe(config: ConfigReader) -> Architecture:
    """``model_type: cohere2_moe``: experts in most layers; ``first_k_dense_replace`` dense ones in front."""
    size = read_sizes(config, head_dim=128)
    hidden, bias, window = size.hidden, config.flag("attention_bias"), config.window()
    first = config.integer("first_k_dense_replace", default=0, null=0, minimum=0)
    period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=4, null=4)
    prefix = config.integer("prefix_dense_sliding_window_pattern", default=1, null=1)
    config.ignore("logit_scale")

    def usual(i: int) -> str:
        every, at = (prefix, i) if i < first else (period, i - first)
        return "sliding_attention" if (at + 1) % every else "full_attention"

    types = layer_types(config, size.layers, usual)
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        rotary_interleaved=True,
        rotary_form="pairs-fp32",
        dropout=config.dropout("attention_dropout"),
    )
    moe = _experts(config, hidden)
    sparse = sparse_types(config, size.layers, first)
    width = config.optional_integer("prefix_dense_intermediate_size") or moe.width
    mlp = gated_mlp(hidden, width, moe.activation)
    fused = config.raw("rms_norm_eps") is None

    def norm(name: str) -> Norm:
        return layer_norm(hidden, name, bias=False, kind=NORM) if fused else rms_norm(hidden, name)

    def make(kind: tuple[str, bool]) -> Block:
        span = window if kind[0] == "sliding_attention" else None
        turned = span is not None or (not kind[1] and prefix == 1)
        mixer = attention._replace(window=span, rotary_dim=size.head_dim if turned else 0)
        return Block(
            mixer=mixer, mlp=moe if kind[1] else mlp, input_norm=norm("input_layernorm"), mlp_norm=None, parallel=True
        )

    blocks = stack(zip(types, sparse, strict=True), make)
    return decoder(
        config, size, blocks, tied=True, final_norm=norm("model.norm"), logit_scale=True, mask_windows=(None, window)
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    width, number = config.integer("intermediate_size"), config.integer("num_shared_experts", default=0, minimum=0)
    word = config.text("expert_selection_fn", default="softmax")
    if word not in ("softmax", "sigmoid"):
        config.fail("expert_selection_fn", f"unknown expert_selection_fn {word!r}", "known: softmax, sigmoid")
    joined = config.text("shared_expert_combination_strategy", default="average")
    if joined not in ("sum", "average"):
        config.fail("shared_expert_combination_strategy", f"unknown strategy {joined!r}", "known: sum, average")
    moe = routed(
        hidden,
        (config.integer("num_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        width,
        config.activation(),
        Shared(number * width),
        router="softmax-fp32-topk" if word == "softmax" else "sigmoid-topk",
        normalised_scores=config.flag("norm_topk_prob", default=True),
    )
    return AveragedMoe(*moe) if joined == "average" else moe


def _assemble(config: ConfigReader, size: StackDimensions, attentions: list[Attention]) -> Architecture:
    hidden = size.hidden
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), config.activation())
    norm = layer_norm(hidden, "input_layernorm", bias=False, kind=NORM)

    def make(attention: Attention) -> Block:
        return Block(mixer=attention, mlp=mlp, input_norm=norm, mlp_norm=None, parallel=True)

    config.ignore("logit_scale")
    final = layer_norm(hidden, "model.norm", bias=False, kind=NORM)
    return decoder(config, size, stack(attentions, make), tied=True, final_norm=final, logit_scale=True)
