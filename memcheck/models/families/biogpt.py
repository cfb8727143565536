"""BioGPT (modeling_biogpt.py): OPT's layer with GELU and an embedding that is multiplied."""

from __future__ import annotations

from memcheck.models.families.opt import POSITION_OFFSET, PROJECTIONS
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.feed_forward import plain_mlp
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Paths


def read(config: ConfigReader) -> Architecture:
    """``model_type: biogpt``. Dropout is 0.1 unless stated, as in the class; the positions are padded by two rows."""
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    h = size.hidden
    if config.number("layerdrop", default=0.0):
        config.fail("layerdrop", "layers that are left out by chance have no estimate", "write layerdrop: 0.0")
    if config.number("activation_dropout", default=0.0):
        config.fail("activation_dropout", "memcheck has no model of dropout in the middle", "write 0.0")
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        softmax_fp32=False,
        masked=True,  # the model makes a padding mask of ones by itself
        padded=True,
        dropout=config.dropout("attention_probs_dropout_prob", default=0.1),
    )
    activation, width = config.activation(default="gelu"), config.integer("intermediate_size")
    dropout = config.dropout("hidden_dropout_prob", default=0.1)
    block = Block(
        mixer=attention,
        mlp=plain_mlp(h, width, activation, "fc1", "fc2", bias=True)._replace(inline=True),
        input_norm=layer_norm(h, "self_attn_layer_norm"),
        mlp_norm=layer_norm(h, "final_layer_norm"),
        dropout=dropout,
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(h, "biogpt.layer_norm"),
        rotary_dim=0,
        learned_positions=size.positions + POSITION_OFFSET,
        embedding_scale=config.flag("scale_embedding", default=True),
        embedding_dropout=dropout,
        paths=Paths(
            layers="biogpt.layers",
            embedding="biogpt.embed_tokens",
            positions="biogpt.embed_positions",
            head="output_projection",
        ),
    )
