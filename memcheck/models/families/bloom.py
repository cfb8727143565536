"""BLOOM (modeling_bloom.py): ALiBi, a norm after the embedding, eager attention only."""

from __future__ import annotations

from memcheck.models.decoder import Names, Projections, decoder, grouped_attention, layer_norm, plain_mlp, read_sizes
from memcheck.models.module_types import EAGER, KERNELS, BloomAttention
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, LayerVariables, Paths

NAMES = Names(
    hidden=("hidden_size", "n_embed"),
    layers=("n_layer", "num_hidden_layers"),
    heads=("n_head", "num_attention_heads"),
    positions=("seq_length",),
)
IRRELEVANT_KEYS = (
    "slow_but_exact", "pretraining_tp", "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion",
    "offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "unk_token_id",
)  # fmt: skip
PROJECTIONS = Projections(("query_key_value",), "dense", "self_attention")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: bloom``. The feed-forward width is four times the hidden size, not
    configurable.
    """
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False)
    hidden = size.hidden
    config.ignore(*IRRELEVANT_KEYS)
    dropout = config.dropout("hidden_dropout")
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        alibi=True,
        fused_qkv="heads",
        kernels=KERNELS._replace(sdpa=False, flash=False),
        eager=EAGER._replace(returned=True),
        dropout=config.dropout("attention_dropout"),
    )
    mlp = plain_mlp(hidden, 4 * hidden, "bloom-gelu", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True)
    block = Block(
        mixer=BloomAttention(*attention),
        mlp=mlp,
        input_norm=layer_norm(hidden, "input_layernorm"),
        mlp_norm=layer_norm(hidden, "post_attention_layernorm"),
        dropout=dropout,
        lives_to_forward_end=LayerVariables(input_norm_output=False, mixer_output=False, mlp_input=True),
        residual="normed" if config.flag("apply_residual_connection_post_layernorm") else "",
    )
    return decoder(
        config,
        size._replace(positions=0),
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(hidden, "transformer.ln_f"),
        rotary_dim=0,
        embedding_norm=layer_norm(hidden, "transformer.word_embeddings_layernorm"),
        paths=Paths("transformer.h", "transformer.word_embeddings", positions="", head="lm_head"),
    )
