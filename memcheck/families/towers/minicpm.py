"""MiniCPM-V 4.6, 4.7 and MiniCPM-OCR: SigLIP on the rows of all pictures, with a merger of windows between its layers.

modeling_minicpmv4_6.py of transformers 5.23, whose vision classes MiniCPM-V 4.7 and MiniCPM-OCR have as they are.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

MODES = ("16x", "4x")
"""Patches that become one image token: with the merger between the layers, and without it."""
WINDOW = 2
"""Patches of a window's side, and of what the projector merges."""
IDS = ("image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: minicpmv4_6`` and ``minicpmv4_7``."""
    return _tower(config, around, "16x")


def read_ocr(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: minicpm_ocr``: four times as many image tokens where its configuration is silent."""
    return _tower(config, around, "4x")


def _tower(config: ConfigReader, around: AroundTower, silent: str) -> Vision:
    outer, outputs = around.outer, around.language.hidden_size
    mode = outer.text("downsample_mode", default=silent)
    if mode not in MODES:
        outer.fail("downsample_mode", f"downsample_mode is {' or '.join(MODES)}")
    if outer.integer("merger_times", default=1) != 1:
        outer.fail("merger_times", "a merger of several rounds has no memory model", "it is 1 in released files")
    for reader, key in ((outer, "merge_kernel_size"), (config, "window_kernel_size")):
        if tuple(reader.integers(key) or (WINDOW, WINDOW)) != (WINDOW, WINDOW):
            reader.fail(key, "windows of other sides than 2 have no memory model")
    outer.ignore("drop_vision_last_layer", "image_size", "patch_size", *IDS)  # which its class does not read
    width = config.integer("hidden_size", default=768)
    heads = config.integer("num_attention_heads", default=12)
    split_width(config, width, heads)
    inner = config.integer("intermediate_size", default=3072)
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    patch = square(config, "patch_size", 16)
    side = square(config, "image_size", 224) // patch
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "attention_dropout in a vision tower has no memory model", "remove it")
    at = outer.integer("insert_layer_id", default=6)
    config.ignore("insert_layer_id", "layer_norm_eps", "initializer_range", "model_type")
    activation = config.activation(default="gelu_pytorch_tanh")
    layer = tower_layer(width, heads, tower_mlp(width, inner, activation, ("mlp.fc1", "mlp.fc2")), "packed-plain")
    merger, unit = _merger(width, inner), WINDOW * WINDOW
    merges = mode == "16x"
    if merges and not 0 <= at < depth - 1:
        outer.fail("insert_layer_id", f"insert_layer_id is between 0 and {depth - 2}, of {depth} layers")
    wide = width * unit
    return Vision(
        kind="minicpm",
        hidden=width,
        blocks=((layer, at + 1), (layer, depth - at - 1)) if merges else ((layer, depth),),
        channels=colours * patch * patch,
        merge=unit * unit if merges else unit,
        outputs=outputs,
        stem=(
            ParameterTensor("embeddings.patch_embedding.weight", (width, colours, patch, patch), "vision"),
            ParameterTensor("embeddings.patch_embedding.bias", (width,), "vision"),
            ParameterTensor("embeddings.position_embedding.weight", (side * side, width), "position"),
        ),
        between=merger if merges else (),
        shrinks=unit if merges else 1,
        unused=() if merges else merger,
        closing=norm_pair("post_layernorm", width),
        projector=(
            *norm_pair("mlp.0.pre_norm", wide),
            *linear("mlp.0.linear_1", wide, wide, "projector", "none", bias=True),
            *linear("mlp.0.linear_2", outputs, wide, "projector", "none", bias=True),
        ),
        hooked=True,
        gives_out=False,
        patch=patch,
        processor="slices:see",
        separators=2,
        heads=heads,
        activation=activation,
        path="vision_tower",
        projector_path="merger",
    )


def _merger(width: int, inner: int) -> tuple[ParameterTensor, ...]:
    """``vit_merger``: attention in windows of four patches, which a network of two matrices makes one."""
    name, unit = "vit_merger.", WINDOW * WINDOW
    attention: tuple[ParameterTensor, ...] = ()
    for matrix in ("q_proj", "k_proj", "v_proj", "out_proj"):
        attention += linear(f"{name}self_attn.{matrix}", width, width, "attention", "none", bias=True)
    return (
        *attention,
        *norm_pair(name + "layer_norm1", width),
        *norm_pair(name + "pre_norm", width * unit),
        *linear(name + "linear_1", inner * unit, width * unit, "mlp", "none", bias=True),
        *linear(name + "linear_2", width, inner * unit, "mlp", "none", bias=True),
    )
