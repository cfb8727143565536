"""Nemotron 4 and Minitron (modeling_nemotron.py): LayerNorm of 1 + w, squared ReLU, half-rotary."""

from __future__ import annotations

from memcheck.models.decoder import decoder, layer_norm, plain_mlp, pre_norm_block, read_attention, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture

NORM = "layernorm-1p"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: nemotron``.

    LayerNorm with weight 1 + w, an MLP with squared ReLU, and half of each head rotated.
    """
    size = read_sizes(config, kv_heads="required")
    hidden = size.hidden
    attention = read_attention(
        config,
        size,
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.5, "rope_percent")),
    )
    width, activation = config.integer("intermediate_size"), config.activation(default="relu2")
    mlp = plain_mlp(hidden, width, activation, "mlp.up_proj", "mlp.down_proj", bias=config.flag("mlp_bias"))
    block = pre_norm_block(hidden, attention, mlp, kind=NORM, bias=True)
    final_norm = layer_norm(hidden, "model.norm", kind=NORM)
    rotary_dim = attention.rotary_dim
    return decoder(config, size, ((block, size.layers),), tied=False, final_norm=final_norm, rotary_dim=rotary_dim)
