"""Helium (modeling_helium.py): Llama with neighbouring pairs rotated and norms whose weight multiplies in fp32."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, grouped_attention, pre_norm_block, read_sizes, rms_norm
from memcheck.models.module_types import HALF
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture

NORM = "rmsnorm-fp32-weight"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: helium``. The output matrix has no bias whatever ``attention_bias``
    says.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    attention = grouped_attention(
        size,
        qkv_bias=config.flag("attention_bias"),
        rotation=HALF._replace(form="pairs", interleaved=True),
        dropout=config.dropout("attention_dropout"),
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), bias=config.flag("mlp_bias"))
    block = pre_norm_block(size.hidden, attention, mlp, kind=NORM)
    final_norm = rms_norm(size.hidden, "model.norm", NORM)
    return decoder(config, size, ((block, size.layers),), tied=False, final_norm=final_norm)
