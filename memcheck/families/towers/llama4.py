"""Llama 4: tiles of 336 pixels with a class token, rotated as complex numbers, pixels shuffled (modeling_llama4.py)."""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import LayerNames, norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

NAMES = LayerNames(output="self_attn.o_proj", norms=("input_layernorm", "post_attention_layernorm"))


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: llama4``. The pixel-shuffle network belongs to the tower, the last matrix is the projector."""
    outputs = around.language.hidden_size
    width = config.integer("hidden_size", default=768)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    inner = config.integer("intermediate_size", default=5632)
    depth = config.integer("num_hidden_layers", default=34, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    side, patch = square(config, "image_size", 448), square(config, "patch_size", 14)
    config.ignore("hidden_act", "norm_eps", "vision_feature_layer", "vision_feature_select_strategy", "rope_theta")
    config.ignore("rope_parameters", "initializer_range", "multi_modal_projector_bias")
    for key in ("attention_dropout", "projector_dropout"):
        if config.dropout(key):
            config.fail(key, f"{key} in a vision tower has no memory model", "it is 0 in released files")
    first = config.integer("projector_input_dim", default=4096)
    second = config.integer("projector_output_dim", default=4096)
    features = config.integer("vision_output_dim", default=7680)
    ratio = config.number("pixel_shuffle_ratio", default=0.5)
    factor = round(1 / ratio) ** 2
    if width * factor != inner:
        config.fail("intermediate_size", f"{factor} shuffled patches are {width * factor} wide, not {inner}")
    mlp = tower_mlp(width, inner, "gelu", NAMES.mlp)
    patches = (side // patch) ** 2
    return Vision(
        kind="llama4",
        hidden=width,
        blocks=((tower_layer(width, heads, mlp, "complex", NAMES, softmax_fp32=False), depth),),
        channels=colours * patch * patch,
        merge=factor,
        outputs=outputs,
        stem=(
            ParameterTensor("class_embedding", (width,), "vision"),
            ParameterTensor("positional_embedding_vlm", (patches + 1, width), "position"),
            *linear("patch_embedding.linear", width, colours * patch * patch, "vision", "none"),
            *norm_pair("layernorm_pre", width),
        ),
        projector=linear("linear_1", outputs, features, "projector", "none"),
        hooked=True,
        closing=(
            *norm_pair("layernorm_post", width),
            *linear("vision_adapter.mlp.fc1", first, inner, "mlp", "none"),
            *linear("vision_adapter.mlp.fc2", second, second, "mlp", "none"),
        ),
        tile=patches + 1,
        tile_tokens=patches // factor,
        classes=1,
        patch=patch,
        processor="tiles:see_llama4",
        heads=heads,
        path="vision_model",
        projector_path="multi_modal_projector",
    )
