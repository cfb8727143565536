"""ESM, language models of proteins (modeling_esm.py): RoBERTa with norms in front of the halves, and rotary embeddings.

Masked rows that are set to zero and scaled (``token_dropout``) are gone before the first layer runs, but for the rows
that were looked up, where those are a leaf.
"""

from __future__ import annotations

from memcheck.models.decoder import layer_norm, plain_mlp, read_sizes
from memcheck.models.families.bert import EncoderPaths, bidirectional, head_matrix, masked_word_model
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Block,
    ParameterTensor,
    Pooling,
)

GELU = "esm-gelu"
"""Written in pieces, whatever ``hidden_act`` says."""
PATHS = EncoderPaths(
    layers="esm.encoder.layer",
    embeddings="esm.embeddings",
    head="lm_head",
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
)
HARMLESS = ("mask_token_id", "hidden_act", "vocab_list", "rope_theta", "esmfold_config")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: esm``: with a head for masked residues. Dropout is 0.1 unless stated, as in
    the class.
    """
    size = read_sizes(config, kv_heads="none", head_dim_key=False, learned_positions=True)
    for key in ("is_decoder", "add_cross_attention", "is_folding_model"):
        config.refuse(key, f"{key}: memcheck has a model of the encoder alone", f"remove {key}")
    config.ignore(*HARMLESS)
    position_type = config.text("position_embedding_type", default="absolute")
    if position_type not in ("absolute", "rotary"):
        config.fail("position_embedding_type", f"unknown positions {position_type!r}", "known: absolute, rotary")
    rotary = position_type == "rotary"
    hidden, hidden_dropout = size.hidden, config.dropout("hidden_dropout_prob", default=0.1)
    rotary_dim = size.head_dim if rotary else 0
    attention_dropout = config.dropout("attention_probs_dropout_prob", default=0.1)
    attention = bidirectional(size, attention_dropout, rotary_dim=rotary_dim, query_scale="constant")
    block = Block(
        mixer=attention,
        mlp=plain_mlp(
            hidden, config.integer("intermediate_size"), GELU, "intermediate.dense", "output.dense", bias=True
        ),
        input_norm=layer_norm(hidden, "attention.LayerNorm"),
        mlp_norm=layer_norm(hidden, "LayerNorm"),
        dropout=hidden_dropout,
    )
    has_embedding_norm = config.flag("emb_layer_norm_before")
    attention_maps = size.layers * size.heads
    return masked_word_model(
        config,
        size,
        block,
        PATHS,
        activation=GELU,
        width=hidden,
        token_types=0,
        dropout=0.0,
        final_norm=layer_norm(hidden, "esm.encoder.emb_layer_norm_after"),
        rotary_dim=rotary_dim,
        learned_positions=0 if rotary else size.positions,
        positions_each=True,
        embedding_norm=layer_norm(hidden, "esm.embeddings.layer_norm") if has_embedding_norm else None,
        embedding_scale="tokens" if config.flag("token_dropout") else "",
        pooling=Pooling(
            "tanh", head_matrix("classifier.dense", hidden, hidden), dropout=hidden_dropout, dropout_before=True
        ),
        extra_tensors=(
            ParameterTensor("esm.contact_head.regression.weight", (1, attention_maps), "head"),
            ParameterTensor("esm.contact_head.regression.bias", (1,), "head"),
        ),
    )
