"""Jais 2 (modeling_jais2.py): Llama with LayerNorm, biases everywhere and a squared ReLU."""

from __future__ import annotations

from memcheck.models.decoder import decoder, layer_norm, plain_mlp, pre_norm_block, read_attention, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: jais2``: Llama's attention with LayerNorm, biases everywhere, and an MLP
    with squared ReLU.
    """
    size = read_sizes(config)
    attention = read_attention(config, size, bias=True)
    mlp = plain_mlp(
        size.hidden,
        config.integer("intermediate_size"),
        config.activation(default="relu2"),
        "mlp.up_proj",
        "mlp.down_proj",
        bias=config.flag("mlp_bias", default=True),
    )
    block = pre_norm_block(size.hidden, attention, mlp, kind="layernorm", bias=True)
    final_norm = layer_norm(size.hidden, "model.norm")
    return decoder(config, size, ((block, size.layers),), tied=False, final_norm=final_norm)
