"""GLM 4 (modeling_glm.py, modeling_glm4.py): fused gate-up, interleaved rotary, perhaps norms after the halves.

The language models of GLM-4.1V and GLM-OCR are its second form (modeling_glm4v.py, modeling_glm_ocr.py).
"""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    grouped_attention,
    pre_norm_block,
    read_sizes,
    rms_norm,
)
from memcheck.models.module_types import HALF
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: glm``."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    return _assemble(config, size, _block(config, size))


def read_4(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: glm4``: a norm after each half as well."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    return _assemble(config, size, _with_output_norms(size, _block(config, size)))


def read_4v(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: glm4v_text``: heads of ``hidden_size / num_attention_heads``, turned whole
    unless stated.
    """
    size = read_sizes(config, kv_heads="required")
    config.ignore("attention_bias")  # the class has biases, even if the key is false
    return _assemble(config, size, _with_output_norms(size, _block(config, size, 1.0, bias=True)), 1.0)


def read_ocr(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: glm_ocr_text``: without biases."""
    size = read_sizes(config, kv_heads="required")
    config.ignore("attention_bias")  # the class has no biases, even if the key is true
    return _assemble(config, size, _with_output_norms(size, _block(config, size, 1.0, bias=False)), 1.0)


def _with_output_norms(size: StackDimensions, block: Block) -> Block:
    """Return the layer with RMSNorms after attention and MLP, as GLM 4 has."""
    return block._replace(
        mixer_output_norm=rms_norm(size.hidden, "post_self_attn_layernorm"),
        mlp_output_norm=rms_norm(size.hidden, "post_mlp_layernorm"),
    )


def _block(config: ConfigReader, size: StackDimensions, fraction: float = 0.5, *, bias: bool | None = None) -> Block:
    """Build one pre-norm layer.

    ``fraction``: default share of each head that is rotated. ``bias``: of q, k and v; None reads ``attention_bias``.
    """
    attention = grouped_attention(
        size,
        qkv_bias=config.flag("attention_bias", default=True) if bias is None else bias,
        rotary_dim=int(size.head_dim * config.rotary_fraction(fraction)),
        rotation=HALF._replace(interleaved=True, form="pairs" if bias is None else "cat"),
        # GLM-4.1V's tables are repeated once for all layers
        dropout=config.dropout("attention_dropout"),
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), fused=True)
    return pre_norm_block(size.hidden, attention, mlp)


def _assemble(config: ConfigReader, size: StackDimensions, block: Block, fraction: float = 0.5) -> Architecture:
    """Build a decoder of equal layers. ``fraction``: default share of each head that is rotated."""
    rotary_dim = int(size.head_dim * config.rotary_fraction(fraction))
    return decoder(config, size, ((block, size.layers),), tied=False, rotary_dim=rotary_dim)
