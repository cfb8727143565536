"""ESM, language models of proteins (modeling_esm.py): RoBERTa with norms in front of the halves, and rotary embeddings.

Masked rows that are set to zero and scaled (``token_dropout``) are gone before the first layer runs, but for the rows
that were looked up, where those are a leaf.
"""

from __future__ import annotations

from memcheck.models.decoder import decoder, grouped_attention, layer_norm, linear, norm_tensors, plain_mlp, read_sizes
from memcheck.models.families.bert import PROJECTIONS
from memcheck.models.module_types import EAGER
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Block,
    EmbeddingModule,
    HeadLayer,
    LogitCasts,
    ParameterTensor,
    Paths,
    Pooling,
)

GELU = "esm-gelu"
"""Written in pieces, whatever ``hidden_act`` says."""
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
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=size.head_dim if rotary else 0,
        dropout=config.dropout("attention_probs_dropout_prob", default=0.1),
        bidirectional=True,
        eager=EAGER._replace(softmax_fp32=False),
        query_scale="constant",
    )
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
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(hidden, "esm.encoder.emb_layer_norm_after"),
        rotary_dim=size.head_dim if rotary else 0,
        learned_positions=0 if rotary else size.positions,
        positions_each=True,
        embedding_norm=layer_norm(hidden, "esm.embeddings.layer_norm") if has_embedding_norm else None,
        embedding_module=EmbeddingModule(apart=True, token_types=0),
        embedding_scale="tokens" if config.flag("token_dropout") else "",
        head_bias=True,
        head_layer=HeadLayer(
            activation=GELU,
            tensors=(
                *linear("lm_head.dense", hidden, hidden, "head", "none", bias=True),
                *norm_tensors(layer_norm(hidden, "lm_head.layer_norm")),
            ),
        ),
        pooling=Pooling(
            "tanh",
            linear("classifier.dense", hidden, hidden, "head", "none", bias=True),
            dropout=hidden_dropout,
            dropout_before=True,
        ),
        logit_casts=LogitCasts(in_model=False, in_loss=False),
        extra_tensors=(
            ParameterTensor("esm.contact_head.regression.weight", (1, attention_maps), "head"),
            ParameterTensor("esm.contact_head.regression.bias", (1,), "head"),
        ),
        paths=Paths(
            layers="esm.encoder.layer",
            embedding="esm.embeddings.word_embeddings",
            positions="esm.embeddings.position_embeddings",
            head="lm_head",
        ),
    )
