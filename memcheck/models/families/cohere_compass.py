"""Cohere's Compass (modeling_cohere_compass.py): Command R7B's blocks, turned as Qwen 3's, by a table for each kind of
layer.
"""

from __future__ import annotations

from memcheck.models.families.cohere import NORM
from memcheck.models.parts.attention import grouped_attention
from memcheck.models.parts.decoder import decoder, layer_norm
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block

KINDS = ("full_attention", "sliding_attention")


def read(config: ConfigReader) -> Architecture:
    """``model_type: cohere_compass_text``: a kind of layer whose rotary parameters are null is not turned."""
    size = read_sizes(config, head_dim_key=False)
    h, bias, window = size.hidden, config.flag("attention_bias"), config.window()
    config.ignore("logit_scale", "pooling", "head_dim")
    types = layer_types(config, size.layers, lambda i: "full_attention", KINDS)
    if window is None and "sliding_attention" in types:
        config.integer("sliding_window")
    still = _still(config)
    attention = grouped_attention(size, qkv_bias=bias, out_bias=bias, dropout=config.dropout("attention_dropout"))
    mlp = gated_mlp(h, config.integer("intermediate_size"), config.activation())

    def make(kind: str) -> Block:
        mixer = attention._replace(window=window) if kind == "sliding_attention" else attention
        return Block(
            mixer=mixer._replace(rotary_dim=0) if kind in still else mixer,
            mlp=mlp,
            input_norm=layer_norm(h, "input_layernorm", bias=False, kind=NORM),
            mlp_norm=None,
            parallel=True,
        )

    found = decoder(
        config,
        size,
        stack(types, make),
        tied=True,
        final_norm=layer_norm(h, "model.norm", bias=False, kind=NORM),
        logit_scale=True,
        mask_windows=(None, window),
    )
    return found._replace(rotary_each=True, rotary_tables=len(set(types) - still))


def _still(config: ConfigReader) -> set[str]:
    """Kinds of layers that are not turned: those whose ``rope_parameters`` are null."""
    stated = config.raw("rope_parameters")
    return {kind for kind in KINDS if isinstance(stated, dict) and kind in stated and stated[kind] is None}
