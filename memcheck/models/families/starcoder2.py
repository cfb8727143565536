"""StarCoder 2 (modeling_starcoder2.py): Mistral's attention with biases, LayerNorm, GELU, dropout."""

from __future__ import annotations

from memcheck.models.decoder import decoder, grouped_attention, layer_norm, plain_mlp, pre_norm_block, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: starcoder2``.

    LayerNorm, grouped attention with biases and a window, and a GELU MLP with dropout.
    """
    size = read_sizes(config, kv_heads="required")
    config.ignore("activation_function", "mlp_type", "norm_type", "scale_attn_weights")
    hidden, bias = size.hidden, config.flag("use_bias", default=True)
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        window=config.window(),
        dropout=config.dropout("attention_dropout"),
    )
    activation = config.activation(default="gelu_pytorch_tanh")
    mlp = plain_mlp(hidden, config.integer("intermediate_size"), activation, "mlp.c_fc", "mlp.c_proj", bias=bias)
    dropout = config.dropout("residual_dropout")
    block = pre_norm_block(hidden, attention, mlp, kind="layernorm", bias=True, dropout=dropout)
    block = block._replace(dropout_place="inner")
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=True,
        final_norm=layer_norm(hidden, "model.norm"),
        embedding_dropout=config.dropout("embedding_dropout"),
    )
