"""Phi 3, 3.5 and 4 (modeling_phi3.py): Llama with fused qkv and gate-up matrices."""

from __future__ import annotations

from memcheck.models.decoder import Projections, decoder, gated_mlp, grouped_attention, pre_norm_block, read_sizes
from memcheck.models.families.llama import intermediate_size
from memcheck.models.module_types import HALF
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture

PROJECTIONS = Projections(("qkv_proj",))


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: phi3``. ``embd_pdrop`` is in the configuration, but the model has no
    dropout on embeddings.
    """
    size = read_sizes(config)
    config.ignore("embd_pdrop", "full_attn_mod", "interpolate_factor")
    config.refuse("attention_bias", "the model has no attention biases", "remove attention_bias")
    attention = grouped_attention(
        size,
        PROJECTIONS,
        fused_qkv="slices",
        rotary_dim=int(size.head_dim * config.rotary_fraction()),
        rotation=HALF._replace(form="cat"),
        window=config.window(),
        dropout=config.dropout("attention_dropout"),
    )
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation(), fused=True)
    block = pre_norm_block(size.hidden, attention, mlp, dropout=config.dropout("resid_pdrop"))
    return decoder(config, size, ((block, size.layers),), tied=False, rotary_dim=attention.rotary_dim)
