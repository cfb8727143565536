"""Ovis 2: a tower whose rows become probabilities of visual words, and a table of these words (modeling_ovis2.py)."""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import LayerNames, norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

NAMES = LayerNames(
    queries="attention.q_proj",
    keys="attention.k_proj",
    values="attention.v_proj",
    output="attention.out_proj",
    norms=("rms_norm1", "rms_norm2"),
    mlp=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
)


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: ovis2``."""
    outer, outputs = around.outer, around.language.hidden_size
    outer.ignore("visual_indicator_token_ids", "vocab_size")
    if outer.integer("hidden_size", default=1536) != outputs:
        outer.fail("hidden_size", f"hidden_size is the width of the visual words, the language model's is {outputs}")
    width = config.integer("hidden_size", default=1024)
    heads = config.integer("num_attention_heads", default=8)
    split_width(config, width, heads)
    depth = config.integer("num_hidden_layers", default=24, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    side, patch = square(config, "image_size", 224), square(config, "patch_size", 14)
    config.ignore("model_type", "rms_norm_eps", "initializer_range")
    config.dropout("attention_dropout")
    for key in ("qkv_bias", "mlp_bias"):
        if config.flag(key):
            config.fail(key, f"{key}: true has no memory model", "it is false in released files")
    if config.text("tokenize_function", default="softmax") != "softmax":
        config.fail("tokenize_function", "only softmax has a memory model", "it is that of released files")
    inner = config.integer("intermediate_size", default=2816)
    mlp = tower_mlp(width, inner, config.activation(default="silu"), NAMES.mlp, bias=False)._replace(copied=True)
    stride, words = config.integer("hidden_stride", default=1), config.integer("vocab_size", default=16384)
    marks = config.integer("num_visual_indicator_tokens", default=5)
    if marks >= words:
        config.fail("num_visual_indicator_tokens", f"{marks} of {words} words leave none for pictures")
    rows, across = (side // patch) ** 2, -(-(side // patch) // stride)
    embedding = "transformer.embeddings."
    return Vision(
        kind="ovis2",
        hidden=width,
        blocks=((tower_layer(width, heads, mlp, "copied", NAMES, bias=False, norm="rmsnorm"), depth),),
        channels=colours * patch * patch,
        merge=stride * stride,
        outputs=outputs,
        stem=(
            ParameterTensor(embedding + "patch_embedding.weight", (width, colours, patch, patch), "vision"),
            ParameterTensor(embedding + "patch_embedding.bias", (width,), "vision"),
            ParameterTensor(embedding + "position_embedding.weight", (rows, width), "position"),
            ParameterTensor(embedding + "rms_norm.weight", (width,), "norm"),
        ),
        projector=(
            *linear("head_linear", words - marks, width * stride * stride, "projector", "none"),
            *norm_pair("head_norm", words - marks),
            ParameterTensor("visual_embeddings_table.weight", (words, outputs), "projector"),
        ),
        hooked=False,
        closing=(ParameterTensor("transformer.rms_norm.weight", (width,), "norm"),),
        tile=rows,
        tile_tokens=across * across,
        patch=patch,
        separators=2,
        heads=heads,
        path="vision_tower",
        projector_path="vision_tower",
    )
