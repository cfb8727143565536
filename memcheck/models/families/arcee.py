"""Arcee, Cosmos3 Edge: Llama with a squared ReLU between two matrices (modeling_arcee.py, modeling_cosmos3_edge.py)."""

from __future__ import annotations

from memcheck.models.decoder import decoder, plain_mlp, pre_norm_block, read_attention, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: arcee``."""
    return _read(config, "mlp.up_proj", "mlp.down_proj")


def _read(config: ConfigReader, up_proj: str, down_proj: str) -> Architecture:
    """Read a configuration of Llama's layers with an MLP of two matrices (``relu2`` by default).

    ``up_proj``, ``down_proj``: module paths of these matrices.
    """
    size = read_sizes(config)
    attention = read_attention(config, size)
    width, activation = config.integer("intermediate_size"), config.activation(default="relu2")
    mlp = plain_mlp(size.hidden, width, activation, up_proj, down_proj, bias=config.flag("mlp_bias"))
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, mlp), size.layers),), tied=False)
