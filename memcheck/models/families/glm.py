"""GLM 4 (modeling_glm.py, modeling_glm4.py): fused gate-up, interleaved half-rotary, with or without norms behind."""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, pre_norm_block, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """``model_type: glm``."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    return _assemble(config, size, _block(config, size))


def read_4(config: ConfigReader) -> Architecture:
    """``model_type: glm4``: a norm behind each half as well."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    block = _block(config, size)._replace(
        mixer_output_norm=rms_norm(size.hidden, "post_self_attn_layernorm"),
        mlp_output_norm=rms_norm(size.hidden, "post_mlp_layernorm"),
    )
    return _assemble(config, size, block)


def _block(config: ConfigReader, size: StackDimensions) -> Block:
    attention = grouped_attention(
        size,
        qkv_bias=config.flag("attention_bias", default=True),
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.5)),
        rotary_interleaved=True,
        rotary_form="pairs",
        dropout=config.dropout("attention_dropout"),
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), fused=True)
    return pre_norm_block(size.hidden, attention, mlp)


def _assemble(config: ConfigReader, size: StackDimensions, block: Block) -> Architecture:
    rotary_dim = int(size.head_dim * config.rotary_fraction(0.5))
    return decoder(config, size, ((block, size.layers),), tied=False, rotary_dim=rotary_dim)
