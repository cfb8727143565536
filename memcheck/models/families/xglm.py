"""XGLM (modeling_xglm.py): mBART's decoder in eager code alone, whose masked scores are floored."""

from __future__ import annotations

from memcheck.models.families.opt import POSITION_OFFSET, PROJECTIONS
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.feed_forward import plain_mlp
from memcheck.models.parts.sizes import Names, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Paths

NAMES = Names(
    hidden=("d_model", "hidden_size"),
    layers=("num_layers", "num_hidden_layers"),
    heads=("attention_heads", "num_attention_heads"),
)


def read(config: ConfigReader) -> Architecture:
    """``model_type: xglm``. Dropout is 0.1 unless stated, as in the class; positions are a buffer."""
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    h = size.hidden
    config.ignore("init_std", "decoder_start_token_id")
    if config.flag("add_cross_attention"):
        config.fail("add_cross_attention", "layers that read an encoder have no memory model here", "remove it")
    if config.dropout("layerdrop"):
        config.note("layerdrop: layers that are skipped at random are counted as if none were")
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        dropout=config.dropout("attention_dropout", default=0.1),
        sdpa=False,
        flash=False,
        scaled_projection=True,
        floored=True,
    )
    activation = config.activation("activation_function", default="gelu")
    mlp = plain_mlp(h, config.integer("ffn_dim"), activation, "fc1", "fc2", bias=True)
    dropout = config.dropout("dropout", default=0.1)
    block = Block(
        mixer=attention,
        mlp=mlp._replace(nested=True, inner_dropout=config.dropout("activation_dropout")),
        input_norm=layer_norm(h, "self_attn_layer_norm"),
        mlp_norm=layer_norm(h, "final_layer_norm"),
        dropout=dropout,
    )
    config.flag("scale_embedding", default=True)  # multiplies by 1 without it
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(h, "model.layer_norm"),
        rotary_dim=0,
        sinusoids=size.positions + POSITION_OFFSET,
        embedding_scale=True,
        embedding_dropout=dropout,
        max_position_embeddings=0,
        paths=Paths(layers="model.layers", embedding="model.embed_tokens"),
    )
