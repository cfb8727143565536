"""DiffLlama (modeling_diffllama.py): Llama whose attention is the difference of two passes over halves of values."""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, pre_norm_block
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.matrices import vector
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """``model_type: diffllama``."""
    size = read_sizes(config)
    bias = config.flag("attention_bias")
    config.ignore("lambda_std_dev")
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "transformers refuses it in this family", "write attention_dropout: 0.0")
    if size.kv_heads % 2:
        config.fail("num_key_value_heads", f"{size.kv_heads} heads of values have no halves", "use an even number")
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        differential=True,
        tensors=tuple(vector(f"self_attn.{name}", size.head_dim, "attention") for name in names),
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation())
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, mlp), size.layers),), tied=False)
