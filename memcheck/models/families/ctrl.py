"""CTRL (modeling_ctrl.py): norms in front of both halves, sines and cosines added to a multiplied embedding."""

from __future__ import annotations

from memcheck.models.parts.attention import Projections, grouped_attention
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.feed_forward import plain_mlp
from memcheck.models.parts.sizes import GPT2_NAMES, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Paths

PROJECTIONS = Projections(("Wq", "Wk", "Wv"), "dense", "multi_head_attention")


def read(config: ConfigReader) -> Architecture:
    """``model_type: ctrl``. Dropout is 0.1 unless stated, as in the class; attention drops nothing."""
    size = read_sizes(config, GPT2_NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    h = size.hidden
    attention = grouped_attention(size, PROJECTIONS, qkv_bias=True, out_bias=True, rotary_dim=0, softmax_fp32=False)
    mlp = plain_mlp(h, config.integer("dff"), "relu", "ffn.0", "ffn.2", bias=True)
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(h, "layernorm1"),
        mlp_norm=layer_norm(h, "layernorm2"),
        dropout=config.dropout("resid_pdrop", default=0.1),
        named_norm=True,
        named_output=True,
        named_mlp_input=True,
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(h, "transformer.layernorm"),
        rotary_dim=0,
        sinusoids=size.positions,
        head_bias=True,
        checkpointable=False,
        embedding_dropout=config.dropout("embd_pdrop", default=0.1),
        paths=Paths("transformer.h", "transformer.w"),
    )
