"""Doge (modeling_doge.py): masks made from the values, a learned vector on the residual stream."""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, pre_norm_block
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """``model_type: doge``, without its experts."""
    size = read_sizes(config)
    h, bias = size.hidden, config.flag("attention_bias")
    if config.flag("is_moe"):
        config.fail("is_moe", "memcheck has no model of Doge's retrieved experts")
    config.ignore("num_experts", "num_experts_per_tok", "norm_topk_prob")
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        query_norm=head_norm("rmsnorm", size.head_dim, "q"),
        key_norm=head_norm("rmsnorm", size.head_dim, "k"),
        masked=True,
        flash=False,
        window=config.window(),
        dynamic_mask=config.integer("keep_window_size", default=2048),
        dropout=config.dropout("attention_dropout"),
        tensors=(
            vector("self_attn.A", size.kv_heads, "attention"),
            *linear("self_attn.dt_proj", size.kv_heads, size.kv_heads * size.head_dim, "attention", "none", bias=bias),
        ),
    )
    mlp = gated_mlp(h, config.integer("intermediate_size"), config.activation(), bias=config.flag("mlp_bias"))
    block = pre_norm_block(h, attention, mlp, dropout=config.dropout("hidden_dropout"))
    names = ("input_residual", "post_attention_residual")
    block = block._replace(stream_scale=True, extra_tensors=tuple(vector(name, h, "norm") for name in names))
    return decoder(config, size, ((block, size.layers),), tied=False)
