"""InternLM 3 (configuration_internlm3.py): runs Llama's code."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, grouped_attention, pre_norm_block, read_sizes
from memcheck.models.families.llama import intermediate_size
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: internlm3``. Its own names of the biases are ``qkv_bias`` and ``bias``, and
    they must be equal.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    bias, mlp_bias = config.flag("attention_bias", "qkv_bias"), config.flag("mlp_bias", "bias")
    if bias != mlp_bias:
        config.fail("qkv_bias", f"qkv_bias = {bias} and bias = {mlp_bias} differ", "transformers refuses that")
    attention = grouped_attention(size, qkv_bias=bias, out_bias=bias, dropout=config.dropout("attention_dropout"))
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation(), bias=mlp_bias)
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, mlp), size.layers),), tied=False)
