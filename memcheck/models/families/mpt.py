"""MPT (modeling_mpt.py): ALiBi, no biases, eager attention only."""

from __future__ import annotations

from memcheck.models.decoder import Names, Projections, decoder, grouped_attention, layer_norm, plain_mlp, read_sizes
from memcheck.models.module_types import EAGER, KERNELS, MptAttention
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, LayerVariables, Paths

NAMES = Names(
    hidden=("d_model", "hidden_size"),
    layers=("n_layers", "num_hidden_layers"),
    heads=("n_heads", "num_attention_heads"),
    positions=("max_seq_len",),
)
IRRELEVANT_KEYS = (
    "emb_pdrop", "embedding_fraction", "init_config", "init_device", "learned_pos_emb", "logit_scale", "no_bias",
    "norm_type", "resid_pdrop", "verbose",
)  # fmt: skip
IRRELEVANT_ATTENTION_KEYS = (
    "alibi", "alibi_bias_max", "attn_impl", "attn_type", "attn_uses_sequence_id", "prefix_lm", "qk_ln", "softmax_scale",
)  # fmt: skip
PROJECTIONS = Projections(("Wqkv",), "out_proj", "attn")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mpt``. transformers builds every MPT with ALiBi, four times the width, and
    no biases.
    """
    size = read_sizes(config, NAMES, kv_heads="none", head_dim_key=False)
    hidden = size.hidden
    config.expect("expansion_ratio", 4, "expansion_ratio other than 4 is not read by transformers")
    config.ignore(*IRRELEVANT_KEYS)
    inner = config.section("attn_config")
    inner.ignore(*IRRELEVANT_ATTENTION_KEYS)
    inner.refuse("qk_ln", "norms on queries and keys are not built by transformers")
    dropout = inner.dropout("attn_pdrop")
    attention = grouped_attention(
        size,
        PROJECTIONS,
        rotary_dim=0,
        alibi=True,
        kernels=KERNELS._replace(sdpa=False, flash=False),
        eager=EAGER._replace(returned=True),
        dropout=dropout,
        clip_qkv=inner.number("clip_qkv", default=0.0) > 0,
    )
    mlp = plain_mlp(hidden, 4 * hidden, "gelu", "ffn.up_proj", "ffn.down_proj")
    block = Block(
        mixer=MptAttention(*attention),
        mlp=mlp,
        input_norm=layer_norm(hidden, "norm_1", bias=False),
        mlp_norm=layer_norm(hidden, "norm_2", bias=False),
        dropout=dropout,
        lives_to_forward_end=LayerVariables(input_norm_output=False, mixer_output=True, mlp_input=True),
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(hidden, "transformer.norm_f", bias=False),
        rotary_dim=0,
        paths=Paths("transformer.blocks", "transformer.wte", positions="", head="lm_head"),
    )
