"""BitNet b1.58 (modeling_bitnet.py): Llama with a norm in front of each half's last matrix, in its unpacked weights."""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, pre_norm_block, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.matrices import norm_tensors
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """``model_type: bitnet``."""
    size = read_sizes(config, kv_heads="required")
    bias, width = config.flag("attention_bias"), config.integer("intermediate_size")
    joined = rms_norm(size.hidden, "self_attn.attn_sub_norm")
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        output_norm=joined,
        tensors=norm_tensors(joined),
        dropout=config.dropout("attention_dropout"),
    )
    inner = rms_norm(width, "mlp.ffn_sub_norm")
    mlp = gated_mlp(size.hidden, width, config.activation(default="relu2"))
    mlp = mlp._replace(inner_norm=inner, tensors=mlp.tensors + norm_tensors(inner))
    block = pre_norm_block(size.hidden, attention, mlp)
    return decoder(config, size, ((block, size.layers),), tied=False)
