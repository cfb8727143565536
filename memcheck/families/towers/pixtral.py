"""Pixtral's tower, which Mistral 3 has too: rows of all pictures in one sequence, under one mask.

modeling_pixtral.py, modeling_mistral3.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import LayerNames, split_width, square, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

NAMES = LayerNames(
    queries="attention.q_proj",
    keys="attention.k_proj",
    values="attention.v_proj",
    output="attention.o_proj",
    norms=("attention_norm", "ffn_norm"),
    mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
)


def read_mistral3(config: ConfigReader, around: AroundTower) -> Vision:
    """Mistral 3: an RMSNorm, a matrix that merges four patches, and LLaVA's two."""
    outer, outputs = around.outer, around.language.hidden_size
    tower = pixtral(config, around, "mistral3")
    merge = outer.integer("spatial_merge_size", default=2) ** 2
    layer = outer.raw("vision_feature_layer")
    if layer not in (None, -1):
        outer.fail("vision_feature_layer", f"vision_feature_layer = {layer!r} has no memory model", "-1 has")
    bias, width = outer.flag("multimodal_projector_bias"), tower.hidden
    projector = (
        ParameterTensor("norm.weight", (width,), "norm"),
        *linear("patch_merger.merging_layer", width, width * merge, "projector", "none"),
        *linear("linear_1", outputs, width, "projector", "none", bias=bias),
        *linear("linear_2", outputs, outputs, "projector", "none", bias=bias),
    )
    return tower._replace(projector=projector, merge=merge, processor="pixtral:see")


def read_lighton(config: ConfigReader, around: AroundTower) -> Vision:
    """LightOnOCR: Mistral 3 with other names, and no break after a row (modeling_lighton_ocr.py)."""
    tower = read_mistral3(config, around)
    return tower._replace(path="vision_encoder", projector_path="vision_projection", activation="gelu")


def pixtral(config: ConfigReader, around: AroundTower, kind: str) -> Vision:
    """The tower alone."""
    width = config.integer("hidden_size", default=1024)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    inner = config.integer("intermediate_size", default=4096)
    depth = config.integer("num_hidden_layers", default=24, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    side, patch = square(config, "image_size", 1024), square(config, "patch_size", 16)
    config.ignore("model_type", "rope_parameters", "rope_theta", "initializer_range", "rope_scaling", "vocab_size")
    if config.integer("head_dim", default=width // heads) != width // heads:
        config.fail("head_dim", "head_dim is not the tower's width over its heads, which its class takes")
    config.dropout("attention_dropout")
    mlp = tower_mlp(width, inner, config.activation(default="gelu"), NAMES.mlp, bias=False)
    block = tower_layer(width, heads, mlp, "pixtral", NAMES, bias=False, norm="rmsnorm")
    return Vision(
        kind=kind,
        hidden=width,
        blocks=((block, depth),),
        channels=colours * patch * patch,
        merge=1,
        outputs=around.language.hidden_size,
        stem=(
            ParameterTensor("patch_conv.weight", (width, colours, patch, patch), "vision"),
            ParameterTensor("ln_pre.weight", (width,), "norm"),
        ),
        projector=(),
        hooked=True,
        patch=patch,
        side=side,
        heads=heads,
        activation=around.outer.activation("projector_hidden_act", default="gelu"),
        path="vision_tower",
        projector_path="multi_modal_projector",
    )
