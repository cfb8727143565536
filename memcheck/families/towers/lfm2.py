"""LFM2-VL: SigLIP 2 on tiles and pictures that are padded to as many patches, and two matrices.

modeling_lfm2_vl.py, modeling_siglip2.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import SIGLIP, norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.families.towers.siglip import pooling_head
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

ROWS = 1024
"""Patches to which the released checkpoints' processor pads: of a tile of 512 x 512 pixels, and of 256 image tokens."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: lfm2_vl``."""
    outer, outputs = around.outer, around.language.hidden_size
    kind = config.text("model_type", default="siglip2_vision_model")
    if kind != "siglip2_vision_model":
        config.fail("model_type", f"memcheck reads no LFM2-VL with a {kind} tower", "SigLIP 2's is read")
    width = config.integer("hidden_size", default=768)
    heads = config.integer("num_attention_heads", default=12)
    split_width(config, width, heads)
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    colours, patch = config.integer("num_channels", default=3), square(config, "patch_size", 16)
    places = config.integer("num_patches", default=256)
    mlp = tower_mlp(
        width,
        config.integer("intermediate_size", default=3072),
        config.activation(default="gelu_pytorch_tanh"),
        SIGLIP.mlp,
    )
    config.ignore("layer_norm_eps", "initializer_range")
    config.dropout("attention_dropout")
    factor = outer.integer("downsample_factor", default=2) ** 2
    inner, bias = outer.integer("projector_hidden_size", default=2560), outer.flag("projector_bias", default=True)
    wide = width * factor
    normed = outer.flag("projector_use_layernorm", default=True)
    norm = norm_pair("layer_norm", wide) if normed else ()
    first = linear("linear_1", inner, wide, "projector", "none", bias=bias)
    colored = colours * patch * patch
    embedding = "embeddings.patch_embedding"
    tower = Vision(
        kind="lfm2",
        hidden=width,
        blocks=((tower_layer(width, heads, mlp, "masked"), depth),),
        channels=colored,
        merge=factor,
        outputs=outputs,
        stem=(
            *linear(embedding, width, colored, "vision", "none", bias=True),
            ParameterTensor("embeddings.position_embedding.weight", (places, width), "position"),
        ),
        projector=(*norm, *first, *linear("linear_2", outputs, inner, "projector", "none", bias=bias)),
        hooked=True,
        closing=norm_pair("post_layernorm", width),
        tile=ROWS,
        tile_tokens=ROWS // factor,
        mask_bytes=0,
        position_bytes=4,
        patch=patch,
        heads=heads,
        activation=outer.activation("projector_hidden_act", default="gelu"),
        processor="padded:see",
        separators=2,
        path="vision_tower",
        projector_path="multi_modal_projector",
    )
    return tower._replace(unused=pooling_head(config, tower))
