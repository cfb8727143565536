"""Nemotron 3 Nano Omni: C-RADIO on patches of all pictures in one row, merged by fours, around Nemotron-H.

modeling_nemotron_h_omni.py, modeling_radio.py of transformers 5.23. Its tower for sounds is counted, and never runs.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parakeet import read_sounds
from memcheck.families.towers.parts import LayerNames, norm_pair, split_width, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

NAMES = LayerNames(
    queries="attention.q_proj",
    keys="attention.k_proj",
    values="attention.v_proj",
    output="attention.o_proj",
    norms=("norm1", "norm2"),
)
SCALES = ("layer_scale1.lambda1", "layer_scale2.lambda1")
HARMLESS = (
    "model_type", "initializer_range", "image_size", "layerscale_value", "layer_norm_eps", "norm_mean", "norm_std",
    "summary_idxs", "patch_dim", "video_patch_dim", "hidden_dropout_prob",
)  # fmt: skip
"""The input conditioner is taken out of the tower, and no dropout has the second probability."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: nemotron_h_omni``."""
    outer, outputs = around.outer, around.language.hidden_size
    width = config.integer("hidden_size", default=1280)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    depth = config.integer("num_hidden_layers", default=32, maximum=MAX_LAYERS)
    patch, colours = config.integer("patch_size", default=16), config.integer("num_channels", default=3)
    side = config.integer("max_img_size", default=2048) // patch
    classes = config.integer("num_cls_tokens", default=3) + config.integer("num_registers", default=7, minimum=0)
    frames = config.integer("video_temporal_patch_size", default=2)
    config.ignore(*HARMLESS)
    for key in ("attention_probs_dropout_prob", "drop_path_rate"):
        if config.dropout(key):
            config.fail(key, f"{key} in a vision tower has no memory model", "it is 0 in released files")
    if outer.integer("vision_hidden_size", default=1280) != width:
        outer.fail("vision_hidden_size", f"vision_hidden_size is not the tower's width {width}")
    outer.ignore("force_image_size", "video_pruning_rate", "video_temporal_patch_size")
    inner, activation = int(width * config.number("mlp_ratio", default=4.0)), config.activation(default="gelu")
    mlp = tower_mlp(width, inner, activation, NAMES.mlp)
    if config.flag("use_swiglu_ffn"):
        wide = -(-int(inner * 2 / 3) // 8) * 8
        mlp = tower_mlp(width, wide, "silu", ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
    block = tower_layer(
        width, heads, mlp, "packed-one", NAMES, bias=config.flag("qkv_bias", default=True), softmax_fp32=False,
        extra=tuple(ParameterTensor(name, (width,), "mlp") for name in SCALES),
    )  # fmt: skip
    merge = int(1 / outer.number("downsample_ratio", default=0.5)) ** 2
    between, pixels = outer.integer("projector_hidden_size", default=4096), colours * patch * patch
    text = outer.raw("text_config")
    ends = isinstance(text, dict) and bool(text.get("num_nextn_predict_layers"))
    return Vision(
        kind="radio",
        hidden=width,
        blocks=((block, depth),),
        channels=pixels,
        merge=merge,
        outputs=outputs,
        stem=(
            *linear("embeddings.patch_projection", width, pixels, "vision", "none"),
            ParameterTensor("embeddings.position_embedding", (1, side * side, width), "position"),
            ParameterTensor("embeddings.cls_register_token", (classes, width), "vision"),
        ),
        projector=(
            ParameterTensor("layer_norm.weight", (width * merge,), "norm"),
            *linear("linear_1", between, width * merge, "projector", "none"),
            *linear("linear_2", outputs, between, "projector", "none"),
        ),
        hooked=False,
        closing=norm_pair("vision_final_layernorm", width) if ends else (),
        unused=linear("embeddings.video_patch_projection", width, frames * pixels, "vision", "none"),
        classes=classes,
        gives_out=False,
        to_loss=True,
        others=read_sounds(outer, outputs),
        patch=patch,
        heads=heads,
        activation="relu2",
        path="vision_model",
        projector_path="multi_modal_projector",
    )
