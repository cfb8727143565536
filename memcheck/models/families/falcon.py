"""Falcon 7B, 40B and 180B (modeling_falcon.py): fused qkv, one or a few key-value heads, parallel halves."""

from __future__ import annotations

from memcheck.models.decoder import (
    Names,
    Projections,
    check_groups,
    decoder,
    grouped_attention,
    layer_norm,
    plain_mlp,
    read_sizes,
)
from memcheck.models.module_types import EAGER, KERNELS, ExpandedFalconAttention, FalconAttention, ViewedTensor
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    LayerVariables,
    Mlp,
    Norm,
    NormsFirstBlock,
    ParameterTensor,
    Paths,
)

NAMES = Names(hidden=("hidden_size", "n_embed"))
PROJECTIONS = Projections(("query_key_value",), "dense", "self_attention")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: falcon``: one matrix for q, k and v, few key-value heads, and attention
    parallel to the MLP.
    """
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False)
    new_decoder = config.flag("new_decoder_architecture")
    size = size._replace(kv_heads=_kv_heads(config, size.heads, new_decoder))
    hidden, bias = size.hidden, config.flag("bias")
    alibi = config.flag("alibi")
    attention = grouped_attention(
        size,
        PROJECTIONS,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=0 if alibi else None,
        alibi=alibi,
        eager=EAGER._replace(softmax_fp32=False, returned=True),
        kernels=KERNELS._replace(explicit_mask=True),
        fused_qkv="index" if new_decoder or size.kv_heads != size.heads else "heads",
        dropout=config.dropout("attention_dropout"),
    )
    grouped = new_decoder and size.kv_heads != size.heads
    attention_type = ExpandedFalconAttention if grouped else FalconAttention
    attention = attention_type(*attention)
    width = config.optional_integer("ffn_hidden_size", "intermediate_size") or 4 * hidden
    activation = config.activation("activation", default="gelu")
    mlp = plain_mlp(hidden, width, activation, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=bias)
    attention = attention._replace(tensors=_transposed_weights(attention))
    mlp = mlp._replace(tensors=_transposed_weights(mlp))
    input_norm, mlp_norm, parallel = _norms(config, hidden, new_decoder)
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=input_norm,
        mlp_norm=mlp_norm,
        parallel=parallel,
        dropout=config.dropout("hidden_dropout"),
    )
    block = block._replace(
        lives_to_forward_end=LayerVariables(input_norm_output=True, mixer_output=True, mlp_input=False)
    )
    block = NormsFirstBlock(*block) if parallel else block
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(hidden, "transformer.ln_f"),
        rotary_dim=size.head_dim,  # the tables are made with ALiBi, too (FalconModel.forward)
        paths=Paths("transformer.h", "transformer.word_embeddings", positions="", head="lm_head"),
    )


def _transposed_weights(part: Attention | Mlp) -> tuple[ParameterTensor, ...]:
    """Mark the matrices of ``FalconLinear``, whose forward is ``input @ self.weight.T``: autograd saves a view of the
    weight.
    """
    return tuple(ViewedTensor(*t) if t.linear else t for t in part.tensors)


def _kv_heads(config: ConfigReader, heads: int, new_decoder: bool) -> int:
    """Read the number of key-value heads.

    It is ``num_kv_heads`` under ``new_decoder_architecture``, else 1 (``multi_query``) or the number of query heads.
    """
    multi_query = config.flag("multi_query", default=True)
    num_kv_heads = config.integer("num_kv_heads", default=heads, null=heads)
    if config.raw("num_key_value_heads") == heads:
        # generic tools write "as many as heads" for a class that has no such key
        config.note(
            "num_key_value_heads is not Falcon's: multi_query, new_decoder_architecture and num_kv_heads decide"
        )
    elif config.has("num_key_value_heads"):
        config.fail("num_key_value_heads", "num_key_value_heads is not read by Falcon", "write num_kv_heads instead")
    if not new_decoder:
        return 1 if multi_query else heads
    check_groups(config, heads, num_kv_heads, "num_kv_heads")
    return num_kv_heads


def _norms(config: ConfigReader, hidden: int, new_decoder: bool) -> tuple[Norm, Norm | None, bool]:
    """Read the norm before attention, the norm before the MLP (None: the same one), and whether both run in
    parallel.
    """
    parallel = config.flag("parallel_attn", default=True)
    default_norms = 2 if new_decoder else 1
    norm_count = config.integer("num_ln_in_parallel_attn", default=default_norms, null=default_norms, maximum=2)
    if not parallel:
        if new_decoder:
            config.fail("parallel_attn", "new_decoder_architecture needs parallel_attn", "set parallel_attn: true")
        return layer_norm(hidden, "input_layernorm"), layer_norm(hidden, "post_attention_layernorm"), False
    if norm_count == 2:
        return layer_norm(hidden, "ln_attn"), layer_norm(hidden, "ln_mlp"), True
    return layer_norm(hidden, "input_layernorm"), None, True
