"""Mistral (modeling_mistral.py): Llama without biases, optionally with a sliding window."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, grouped_attention, pre_norm_block, read_sizes
from memcheck.models.families.llama import intermediate_size
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mistral``.

    The class default of ``sliding_window`` is 4096, which only the first release used; files written by transformers
    always state the key, so where it is absent a person left it out, and means no window.
    """
    size = read_sizes(config, kv_heads="required")
    if "sliding_window" not in config.config:
        config.note("sliding_window is not stated: taken as no window")
    attention = grouped_attention(size, window=config.window(), dropout=config.dropout("attention_dropout"))
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation())
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, mlp), size.layers),), tied=False)
