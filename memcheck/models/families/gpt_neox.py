"""GPT-NeoX and Pythia (modeling_gpt_neox.py): both halves read the residual stream through norms of their own."""

from __future__ import annotations

from memcheck.models.decoder import Projections, decoder, grouped_attention, layer_norm, plain_mlp, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Paths

PROJECTIONS = Projections(("query_key_value",), "dense", "attention")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gpt_neox``. The feed-forward network has biases whatever ``attention_bias``
    says.
    """
    size = read_sizes(config, kv_heads="none", head_dim_key=False)
    hidden = size.hidden
    bias = config.flag("attention_bias", default=True)
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=int(size.head_dim * config.rotary_fraction(0.25, "rotary_pct")),
        fused_qkv="heads",
        dropout=config.dropout("attention_dropout"),
    )
    activation = config.activation(default="gelu")
    width = config.integer("intermediate_size")
    mlp = plain_mlp(hidden, width, activation, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True)
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(hidden, "input_layernorm"),
        mlp_norm=layer_norm(hidden, "post_attention_layernorm"),
        parallel=config.flag("use_parallel_residual", default=True),
        dropout=config.dropout("hidden_dropout"),
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=False,
        final_norm=layer_norm(hidden, "gpt_neox.final_layer_norm"),
        rotary_dim=attention.rotary_dim,
        # the model applies hidden_dropout to the embeddings as well
        embedding_dropout=block.dropout,
        paths=Paths("gpt_neox.layers", "gpt_neox.embed_in", positions="", head="lm_head"),
    )
