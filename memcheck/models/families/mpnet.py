"""MPNet (modeling_mpnet.py): BERT's layers in eager code; the model looks biases of the scores up."""

from __future__ import annotations

from memcheck.models.decoder import Projections, grouped_attention, read_sizes
from memcheck.models.families.bert import ROBERTA, assemble
from memcheck.models.module_types import KERNELS
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, MpnetModel, ParameterTensor

PROJECTIONS = Projections(("q", "k", "v"), "o", "attention.attn")
NORM = "attention.LayerNorm"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mpnet``: BERT's layers with a relative position bias, and a head for masked
    words.

    One table of relative positions serves all layers; each attention gets the bias as an argument.
    """
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        dropout=config.dropout("attention_probs_dropout_prob", default=0.1),
        bidirectional=True,
        kernels=KERNELS._replace(sdpa=False, flash=False),
        position_bias="given",
    )
    buckets = config.integer("relative_attention_num_buckets", default=32)
    table = ParameterTensor("mpnet.encoder.relative_attention_bias.weight", (buckets, size.heads), "position")
    names = ROBERTA._replace(model="mpnet", transform="gelu")
    architecture = assemble(config, size, names, attention, types=0, extra=(table,))
    blocks = tuple(
        (block._replace(input_norm=block.input_norm._replace(name=NORM) if block.input_norm else None), count)
        for block, count in architecture.blocks
    )
    return MpnetModel(*architecture)._replace(blocks=blocks, positions_each=True)
