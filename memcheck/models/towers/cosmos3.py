"""Cosmos3 Edge: SigLIP 2 on the rows of all pictures, a kernel each, and Qwen's merger.

modeling_cosmos3_edge.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import SIGLIP, norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: cosmos3_edge``."""
    outputs = around.language.hidden_size
    width = config.integer("hidden_size", default=1152)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    inner = config.integer("intermediate_size", default=4304)
    depth = config.integer("num_hidden_layers", default=27, maximum=MAX_LAYERS)
    patch = square(config, "patch_size", 16)
    channels = config.integer("num_channels", default=3) * patch * patch
    places = config.integer("num_patches", default=256)
    merge = config.integer("spatial_merge_size", default=2) ** 2
    config.ignore("model_type", "layer_norm_eps", "initializer_range")
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "attention_dropout in a vision tower has no memory model", "remove it")
    mlp = tower_mlp(width, inner, config.activation(default="gelu_pytorch_tanh"), SIGLIP.mlp)
    wide, between = width * merge, around.outer.integer("projector_hidden_size", default=11520)
    return Vision(
        kind="cosmos3",
        hidden=width,
        blocks=((tower_layer(width, heads, mlp, "packed-plain"), depth),),
        channels=channels,
        merge=merge,
        outputs=outputs,
        stem=(
            *linear("embeddings.patch_embedding", width, channels, "vision", "none", bias=True),
            ParameterTensor("embeddings.position_embedding.weight", (places, width), "position"),
        ),
        projector=(
            *norm_pair("norm", width),
            *linear("linear_fc1", between, wide, "projector", "none", bias=True),
            *linear("linear_fc2", outputs, between, "projector", "none", bias=True),
        ),
        hooked=False,
        closing=norm_pair("post_layernorm", width),
        patch=patch,
        heads=heads,
        processor="qwen:see_cosmos",
        separators=2,
        gives_out=False,
        path="visual",
        projector_path="projector",
    )
