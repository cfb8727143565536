"""Phi 1.5 and 2 (modeling_phi.py): one LayerNorm feeds attention and feed-forward, which are added together."""

from __future__ import annotations

from memcheck.models.decoder import Projections, decoder, grouped_attention, layer_norm, plain_mlp, read_sizes
from memcheck.models.module_types import HALF
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block

PROJECTIONS = Projections(output="dense")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: phi``: biases everywhere, the head's included."""
    size = read_sizes(config)
    hidden = size.hidden
    use_qk_norm = config.flag("qk_layernorm")
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.5)),
        query_norm=layer_norm(hidden // size.heads, "self_attn.q_layernorm") if use_qk_norm else None,
        key_norm=layer_norm(hidden // size.heads, "self_attn.k_layernorm") if use_qk_norm else None,
        dropout=config.dropout("attention_dropout"),
        rotation=HALF._replace(named=True),
    )
    activation = config.activation(default="gelu_new")
    mlp = plain_mlp(hidden, config.integer("intermediate_size"), activation, "mlp.fc1", "mlp.fc2", bias=True)
    dropout = config.dropout("resid_pdrop")
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(hidden, "input_layernorm"),
        mlp_norm=None,
        parallel=True,
        dropout=dropout,
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=False,
        final_norm=layer_norm(hidden, "model.final_layernorm"),
        rotary_dim=attention.rotary_dim,
        head_bias=True,
        embedding_dropout=config.dropout("embd_pdrop"),
    )
