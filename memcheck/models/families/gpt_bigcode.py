"""StarCoder 1 and SantaCoder (modeling_gpt_bigcode.py): GPT-2 with one head of keys and values."""

from __future__ import annotations

from memcheck.models.decoder import (
    GPT2_NAMES,
    Projections,
    grouped_attention,
    plain_mlp,
    read_sizes,
)
from memcheck.models.families.gpt2 import SUMMARY, gpt2_block, gpt2_model
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, GptBigCodeModel

FUSED = Projections(("c_attn",), "c_proj", "attn")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gpt_bigcode``. Dropout is 0.1 unless stated, as in the class."""
    size = read_sizes(config, GPT2_NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    hidden, multi_query = size.hidden, config.flag("multi_query", default=True)
    size = size._replace(kv_heads=1 if multi_query else size.heads)
    config.ignore("num_key_value_heads", "scale_attn_weights", "attention_softmax_in_fp32", *SUMMARY)
    config.ignore("inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length")
    config.ignore("pre_allocate_kv_cache", "validate_runner_input")
    config.refuse("add_cross_attention", "cross attention is not modelled", "remove add_cross_attention")
    residual = config.dropout("resid_pdrop", default=0.1)
    attention = grouped_attention(
        size,
        FUSED,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        fused_qkv="split" if multi_query else "heads",
        dropout=config.dropout("attn_pdrop", default=0.1),
    )
    width = config.optional_integer("n_inner", "intermediate_size") or 4 * hidden
    activation = config.activation("activation_function", default="gelu_pytorch_tanh")
    mlp = plain_mlp(hidden, width, activation, "mlp.c_fc", "mlp.c_proj", bias=True)
    block = gpt2_block(hidden, attention, mlp, residual)
    return GptBigCodeModel(*gpt2_model(config, size, block, config.dropout("embd_pdrop", default=0.1)))
