"""Command R, R+ and R7B (modeling_cohere.py, modeling_cohere2.py): parallel halves behind one bias-free norm."""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.parts.stack import layer_types, stack, windows
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block

NORM = "layernorm-pieces"


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


def _assemble(config: ConfigReader, size: StackDimensions, attentions: list[Attention]) -> Architecture:
    h = size.hidden
    mlp = gated_mlp(h, config.integer("intermediate_size"), config.activation())
    norm = layer_norm(h, "input_layernorm", bias=False, kind=NORM)

    def make(attention: Attention) -> Block:
        return Block(mixer=attention, mlp=mlp, input_norm=norm, mlp_norm=None, parallel=True)

    config.ignore("logit_scale")
    final = layer_norm(h, "model.norm", bias=False, kind=NORM)
    return decoder(config, size, stack(attentions, make), tied=True, final_norm=final, logit_scale=True)
