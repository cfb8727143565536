"""Mixtral (modeling_mixtral.py): Mistral's attention, every feed-forward network routed."""

from __future__ import annotations

from memcheck.models.decoder import decoder, grouped_attention, pre_norm_block, read_sizes, routed
from memcheck.models.module_types import NORMALISED_SCORES
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mixtral``. ``num_experts`` is another family's name and does not count as
    stated.
    """
    size = read_sizes(config, kv_heads="required")
    attention = grouped_attention(size, window=config.window(), dropout=config.dropout("attention_dropout"))
    moe = routed(
        size.hidden,
        (config.integer("num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("intermediate_size"),
        config.activation(),
        routing=NORMALISED_SCORES._replace(scores_fp32=True),
    )
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, moe), size.layers),), tied=False)
