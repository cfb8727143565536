"""Hunyuan VL: SigLIP's layers on patches of all pictures in one row, two convolutions that merge (HunyuanOCR).

modeling_hunyuan_vl.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import HARMLESS, SIGLIP, split_width, tower_layer, tower_mlp
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

NAMES = SIGLIP._replace(output="self_attn.o_proj")
LIMITS = (
    "img_max_token_num", "interpolate_mode", "max_vit_seq_len", "min_image_size", "out_hidden_size", "rms_norm_eps",
    "temporal_patch_size",
)  # fmt: skip
"""What the class reads for nothing that has a size, or not at all."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: hunyuan_vl``. Rows of image tokens end with a learned one, and two stand around each picture."""
    outer, outputs = around.outer, around.language.hidden_size
    outer.ignore("im_start_id", "im_end_id", "im_newline_id")
    width = config.integer("hidden_size", default=1152)
    heads = config.integer("num_attention_heads", "attention_heads", default=16)
    split_width(config, width, heads)
    if config.integer("num_key_value_heads", default=heads, null=heads) != heads:
        config.fail("num_key_value_heads", "its class gives keys as many heads as queries", f"write {heads}")
    if config.integer("head_dim", default=width // heads, null=width // heads) != width // heads:
        config.fail("head_dim", f"heads of another width than {width // heads} have no memory model")
    if config.integer("text_hidden_size", default=3072) != outputs:
        config.fail("text_hidden_size", f"text_hidden_size is not the language model's width {outputs}")
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "attention_dropout in a vision tower has no memory model", "remove it")
    inner = config.integer("intermediate_size", default=4304)
    depth = config.integer("num_hidden_layers", default=27, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    patch = config.integer("patch_size", default=16)
    side = config.integer("max_image_size", default=2048) // patch
    merge = config.integer("spatial_merge_size", default=2)
    config.ignore(*HARMLESS, *LIMITS)
    activation = config.activation(default="gelu")
    mlp = tower_mlp(width, inner, activation, NAMES.mlp)
    embedding, merger = "embeddings.patch_embedding", "patch_merger"
    return Vision(
        kind="hunyuan",
        hidden=width,
        blocks=((tower_layer(width, heads, mlp, "packed-plain", NAMES), depth),),
        channels=colours * patch * patch,
        merge=merge * merge,
        outputs=outputs,
        stem=(
            ParameterTensor(embedding + ".weight", (width, colours, patch, patch), "vision"),
            ParameterTensor(embedding + ".bias", (width,), "vision"),
            ParameterTensor("embeddings.position_embedding.weight", (side * side + 1, width), "position"),
        ),
        projector=(
            ParameterTensor(f"{merger}.before_rms.weight", (width,), "norm"),
            ParameterTensor(f"{merger}.proj_conv.weight", (2 * width, width, merge, merge), "projector"),
            ParameterTensor(f"{merger}.proj_conv.bias", (2 * width,), "projector"),
            ParameterTensor(f"{merger}.proj_out.weight", (4 * width, 2 * width, 1, 1), "projector"),
            ParameterTensor(f"{merger}.proj_out.bias", (4 * width,), "projector"),
            ParameterTensor(f"{merger}.image_newline", (4 * width,), "projector"),
            *linear(f"{merger}.mlp", outputs, 4 * width, "projector", "none", bias=True),
            ParameterTensor(f"{merger}.image_begin", (outputs,), "projector"),
            ParameterTensor(f"{merger}.image_end", (outputs,), "projector"),
            ParameterTensor(f"{merger}.after_rms.weight", (outputs,), "norm"),
        ),
        unused=(ParameterTensor(f"{merger}.image_sep", (outputs,), "projector"),),
        hooked=False,
        narrow=True,
        patch=patch,
        processor="qwen:see_hunyuan",
        separators=2,
        heads=heads,
        activation=activation,
        path="vision_tower",
        projector_path="vision_tower.patch_merger",
    )
