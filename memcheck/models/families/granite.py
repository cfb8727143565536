"""Granite 3, dense and routed (modeling_granite.py, modeling_granitemoe.py): Llama with constant multipliers."""

from __future__ import annotations

from memcheck.models.families.llama import intermediate_size
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, pre_norm_block
from memcheck.models.parts.feed_forward import gated_mlp, routed
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Mlp, Moe


def read(config: ConfigReader) -> Architecture:
    """``model_type: granite``."""
    size = read_sizes(config)
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation(), bias=config.flag("mlp_bias"))
    return _assemble(config, size, mlp)


def read_moe(config: ConfigReader) -> Architecture:
    """``model_type: granitemoe``."""
    size = read_sizes(config)
    moe = routed(
        size.hidden,
        (config.integer("num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("intermediate_size"),
        config.activation(),
        module="block_sparse_moe",
        gate="router",
        router="softmax-topk",
        normalised_scores=False,
    )
    return _assemble(config, size, moe)


def _assemble(config: ConfigReader, size: StackDimensions, mlp: Mlp | Moe) -> Architecture:
    bias = config.flag("attention_bias")
    attention = grouped_attention(size, qkv_bias=bias, out_bias=bias, dropout=config.dropout("attention_dropout"))
    config.ignore("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")
    block = pre_norm_block(size.hidden, attention, mlp)._replace(residual_scale=True)
    found = decoder(config, size, ((block, size.layers),), tied=False, embedding_scale=True, logit_scale=True)
    return found._replace(scales_outside=True)
