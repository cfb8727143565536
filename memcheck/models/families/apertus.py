"""Apertus (modeling_apertus.py): norms on each head's query and key, and an activation with two learned slopes."""

from __future__ import annotations

from memcheck.models.decoder import decoder, head_norms, plain_mlp, read_attention, read_sizes, rms_norm, vector
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: apertus``. The estimate takes the activation's Python version, without the
    xIELU wheel.
    """
    size = read_sizes(config)
    attention = read_attention(
        config,
        size,
        **head_norms("rmsnorm", size.head_dim),
    )
    activation = config.activation(default="xielu")
    mlp = plain_mlp(size.hidden, config.integer("intermediate_size"), activation, "mlp.up_proj", "mlp.down_proj")
    if activation == "xielu":
        slopes = tuple(vector(f"mlp.act_fn.{name}", 1, "mlp") for name in ("alpha_p", "alpha_n"))
        mlp = mlp._replace(tensors=mlp.tensors + slopes)
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=rms_norm(size.hidden, "attention_layernorm"),
        mlp_norm=rms_norm(size.hidden, "feedforward_layernorm"),
    )
    return decoder(config, size, ((block, size.layers),), tied=False)
