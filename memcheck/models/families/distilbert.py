"""DistilBERT (modeling_distilbert.py): BERT's layers without token types, and no dropout after attention."""

from __future__ import annotations

from memcheck.models.decoder import (
    Names,
    Projections,
    decoder,
    grouped_attention,
    layer_norm,
    linear,
    norm_tensors,
    plain_mlp,
    read_sizes,
)
from memcheck.models.module_types import EAGER
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, EmbeddingModule, HeadLayer, LogitCasts, Paths, Pooling

PROJECTIONS = Projections(("q_lin", "k_lin", "v_lin"), "out_lin", "attention")
NAMES = Names(hidden=("dim",), layers=("n_layers",), heads=("n_heads",))


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: distilbert``: an encoder with a head for masked words."""
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden = size.hidden
    config.ignore("qa_dropout", "sinusoidal_pos_embds", "tie_weights_")
    dropout = config.dropout("dropout", default=0.1)
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        dropout=config.dropout("attention_dropout", default=0.1),
        bidirectional=True,
        eager=EAGER._replace(softmax_fp32=False),
    )
    activation = config.activation("activation", default="gelu")
    width = config.integer("hidden_dim", default=4 * 768)
    mlp = plain_mlp(hidden, width, activation, "ffn.lin1", "ffn.lin2", bias=True, dropout=dropout)
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(hidden, "sa_layer_norm"),
        mlp_norm=layer_norm(hidden, "output_layer_norm"),
        residual="post-norm",
    )
    embeddings = "distilbert.embeddings"
    norm = layer_norm(hidden, "vocab_layer_norm")
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        rotary_dim=0,
        learned_positions=size.positions,
        embedding_norm=layer_norm(hidden, f"{embeddings}.LayerNorm"),
        embedding_module=EmbeddingModule(apart=True, token_types=0),
        embedding_dropout=dropout,
        head_bias=True,
        head_layer=HeadLayer(
            activation=activation,
            tensors=(*linear("vocab_transform", hidden, hidden, "head", "none", bias=True), *norm_tensors(norm)),
        ),
        pooling=Pooling(
            "relu",
            linear("pre_classifier", hidden, hidden, "head", "none", bias=True),
            dropout=config.dropout("seq_classif_dropout", default=0.2),
        ),
        logit_casts=LogitCasts(in_model=False, in_loss=False),
        paths=Paths(
            layers="distilbert.transformer.layer",
            embedding=f"{embeddings}.word_embeddings",
            positions=f"{embeddings}.position_embeddings",
            head="vocab_projector",
        ),
    )._replace(final_norm=None)
