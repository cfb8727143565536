"""ERNIE 4.5 VL: a matrix before Qwen2-VL's layers, a norm, and a resampler of pictures as clips of two frames.

modeling_ernie4_5_vl_moe.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import norm_pair
from memcheck.models.towers.qwen import heads_of, packed_block, packed_mlp
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

FRAMES = 2
"""``temporal_merge_size`` that the resampler's slices are written for."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: ernie4_5_vl_moe``."""
    outputs = around.language.hidden_size
    width = config.integer("hidden_size", default=1280)
    heads = heads_of(config, width, 16)
    inner = config.integer("intermediate_size", default=5120)
    depth = config.integer("depth", default=32, maximum=MAX_LAYERS)
    colours, patch = config.integer("in_channels", default=3), config.integer("patch_size", default=14)
    side = config.integer("spatial_merge_size", default=2)
    if config.integer("temporal_merge_size", default=FRAMES) != FRAMES:
        config.fail("temporal_merge_size", "the resampler takes two frames together, and no other number of them")
    config.ignore("model_type", "rms_norm_eps", "initializer_range", "rope_parameters", "rope_theta")
    mlp = packed_mlp(width, inner, config.activation(default="quick_gelu"), ("fc1", "fc2"), gated=False)
    wide, numbers = width * side * side, colours * patch * patch
    return Vision(
        kind="ernie4_5_vl",
        hidden=width,
        blocks=((packed_block(width, heads, mlp, "layernorm"), depth),),
        channels=numbers,
        merge=side * side,
        outputs=outputs,
        stem=linear("patch_embed.proj", width, numbers, "vision", "none"),
        projector=(
            *_network("spatial_linear", wide, wide),
            *_network("temporal_linear", FRAMES * wide, wide),
            *linear("mlp", outputs, wide, "projector", "none", bias=True),
            ParameterTensor("after_norm.weight", (outputs,), "norm"),
        ),
        hooked=True,
        closing=norm_pair("ln", width),
        narrow=True,
        patch=patch,
        processor="qwen:see_ernie",
        separators=2,
        gives_out=False,
        heads=heads,
        path="vision_tower",
        projector_path="resampler_model",
    )


def _network(name: str, inputs: int, outputs: int) -> tuple[ParameterTensor, ...]:
    """Two matrices, and a norm after them."""
    return (
        *linear(f"{name}.fc1", outputs, inputs, "projector", "none", bias=True),
        *linear(f"{name}.fc2", outputs, outputs, "projector", "none", bias=True),
        *norm_pair(f"{name}.ln", outputs),
    )
