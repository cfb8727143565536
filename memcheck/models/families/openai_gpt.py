"""GPT-1 (modeling_openai.py): norms after the residual sums, a mask in each layer that multiplies the scores."""

from __future__ import annotations

from memcheck.models.families.gpt2 import CONV1D
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.feed_forward import plain_mlp
from memcheck.models.parts.sizes import GPT2_NAMES, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Paths

ACTIVATIONS = {"gelu": "gelu_new", "swish": "silu"}
"""What the file's own table makes of names."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: openai-gpt``. Dropout is 0.1 unless stated, as in the class."""
    size = read_sizes(config, GPT2_NAMES, kv_heads="none", head_dim_key=False, learned_positions=True)
    h = size.hidden
    config.ignore("n_ctx", "predict_special_tokens", "summary_type", "summary_use_proj", "summary_activation")
    config.ignore("summary_proj_to_labels", "summary_first_dropout")
    residual = config.dropout("resid_pdrop", default=0.1)
    attention = grouped_attention(
        size,
        CONV1D,
        qkv_bias=True,
        out_bias=True,
        rotary_dim=0,
        sdpa=False,
        flash=False,
        softmax_fp32=False,
        factor_mask=size.positions,
        dropout=config.dropout("attn_pdrop", default=0.1),
    )
    word = config.activation("afn", default="gelu")
    mlp = plain_mlp(h, 4 * h, ACTIVATIONS.get(word, word), "mlp.c_fc", "mlp.c_proj", bias=True, transposed=True)
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=layer_norm(h, "ln_1"),
        mlp_norm=layer_norm(h, "ln_2"),
        post_norm=True,
        dropout=residual,
        inner_dropout=True,
        named_output=True,
    )
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(h, ""),
        rotary_dim=0,
        learned_positions=size.positions,
        embedding_dropout=config.dropout("embd_pdrop", default=0.1),
        paths=Paths("transformer.h", "transformer.tokens_embed", "transformer.positions_embed"),
    )._replace(final_norm=None)
