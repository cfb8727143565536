"""DistilBERT (modeling_distilbert.py): BERT's layers without token types, and no dropout after attention."""

from __future__ import annotations

from memcheck.models.decoder import (
    Names,
    Projections,
    layer_norm,
    plain_mlp,
    read_sizes,
)
from memcheck.models.families.bert import EncoderPaths, bidirectional, head_matrix, masked_word_model
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Pooling

PROJECTIONS = Projections(("q_lin", "k_lin", "v_lin"), "out_lin", "attention")
PATHS = EncoderPaths(
    layers="distilbert.transformer.layer",
    embeddings="distilbert.embeddings",
    head="vocab_projector",
    dense="vocab_transform",
    norm="vocab_layer_norm",
)
NAMES = Names(hidden=("dim",), layers=("n_layers",), heads=("n_heads",))


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: distilbert``: an encoder with a head for masked words."""
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden = size.hidden
    config.ignore("qa_dropout", "sinusoidal_pos_embds", "tie_weights_")
    dropout = config.dropout("dropout", default=0.1)
    attention = bidirectional(size, config.dropout("attention_dropout", default=0.1), PROJECTIONS)
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
    pooler = head_matrix("pre_classifier", hidden, hidden)
    return masked_word_model(
        config,
        size,
        block,
        PATHS,
        activation=activation,
        width=hidden,
        token_types=0,
        dropout=dropout,
        learned_positions=size.positions,
        pooling=Pooling("relu", pooler, dropout=config.dropout("seq_classif_dropout", default=0.2)),
    )
