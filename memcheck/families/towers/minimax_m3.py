"""MiniMax M3 VL: CLIP's layers on patches of all pictures in one row, rotated in part (modeling_minimax_m3_vl.py)."""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import HARMLESS, SIGLIP, norm_pair, split_width, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

AXES = 3
"""Time, height and width: each has as many pairs of a head's channels."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: minimax_m3_vl``: four patches become one image token after the first two of four matrices."""
    outer, outputs = around.outer, around.language.hidden_size
    width = config.integer("hidden_size", default=1280)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    inner = config.integer("intermediate_size", default=5120)
    depth = config.integer("num_hidden_layers", default=32, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    patch = config.integer("patch_size", default=14)
    frames = config.integer("temporal_patch_size", default=2)
    side = config.integer("spatial_merge_size", default=2)
    config.ignore(*HARMLESS, "image_size")
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "attention_dropout in a vision tower has no memory model", "remove it")
    projected = outer.integer("projector_hidden_size", default=6144)
    merge = side * side
    if outer.integer("merged_hidden_size", default=outputs * merge) != outputs * merge:
        outer.fail("merged_hidden_size", f"merged_hidden_size is not {outputs * merge}, which its class makes of it")
    mlp = tower_mlp(width, inner, config.activation(default="gelu"), SIGLIP.mlp)
    block = tower_layer(width, heads, mlp, "packed-part")
    mixer = block.mixer
    rotated = 2 * AXES * (width // heads // AXES // 2)
    if isinstance(mixer, TowerAttention):
        block = block._replace(mixer=mixer._replace(rotary_dim=rotated))
    return Vision(
        kind="minimax_m3",
        hidden=width,
        blocks=((block, depth),),
        channels=colours * frames * patch * patch,
        merge=merge,
        outputs=outputs,
        stem=(
            ParameterTensor("embeddings.proj.weight", (width, colours, frames, patch, patch), "vision"),
            *norm_pair("pre_layrnorm", width),
        ),
        projector=(
            *linear("linear_1", projected, width, "projector", "none", bias=True),
            *linear("linear_2", outputs, projected, "projector", "none", bias=True),
            *linear("merge_linear_1", projected, outputs * merge, "projector", "none", bias=True),
            *linear("merge_linear_2", outputs, projected, "projector", "none", bias=True),
        ),
        hooked=False,
        patch=patch,
        processor="qwen:see_minimax",
        separators=2,
        heads=heads,
        path="vision_tower",
        projector_path="multi_modal_projector",
    )
