"""MiniCPM-V 4.6, 4.7 and MiniCPM-OCR: SigLIP on the rows of all pictures, with a merger of windows between its layers.

modeling_minicpmv4_6.py of transformers 5.23, whose vision classes MiniCPM-V 4.7 and MiniCPM-OCR have as they are.

MiniCPM-V 4.6 and 4.7: SigLIP's layers, and a merger of windows between them (modeling_minicpmv4_6.py).

Pictures go through the projector one after the other upstream, and all at once here: what is kept is the same.

MiniCPM-V's processor: every picture as a whole, and the slices of large ones, each of a shape of its own.

transformers 5.23 models/minicpmv4_6/image_processing_minicpmv4_6.py and processing_minicpmv4_6.py.
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, copy, unary
from memcheck.autograd.indexing import index, slices
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import AroundTower
from memcheck.families.pictures import Limits, ProcessedPicture, no_clips, no_limits
from memcheck.families.tower import TowerForward
from memcheck.families.towers.attention import attention_per_picture, projections, tower_attention
from memcheck.families.towers.forward_parts import (
    cat_image_tokens,
    last_hidden_state,
    layer_norm,
    linear_layer,
    patch_convolution,
    require_input_grads,
)
from memcheck.families.towers.parts import norm_pair, require_divisible_heads, square_side, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Between, TowerAttention, Vision

MODES = ("16x", "4x")
"""Patches that become one image token: with the merger between the layers, and without it."""
WINDOW = 2
"""Patches of a window's side, and of what the projector merges."""
IDS = ("image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")


def read(config: ConfigReader, model: AroundTower) -> Vision:
    """``model_type: minicpmv4_6`` and ``minicpmv4_7``."""
    return _tower(config, model, "16x")


def read_ocr(config: ConfigReader, model: AroundTower) -> Vision:
    """``model_type: minicpm_ocr``: four times as many image tokens where its configuration is silent."""
    return _tower(config, model, "4x")


def _tower(config: ConfigReader, model: AroundTower, silent: str) -> Vision:
    outer, outputs = model.outer, model.language.hidden_size
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
    require_divisible_heads(config, width, heads)
    inner = config.integer("intermediate_size", default=3072)
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    pixel_channels = config.integer("num_channels", default=3)
    patch = square_side(config, "patch_size", 16)
    image_size = square_side(config, "image_size", 224) // patch
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "attention_dropout in a vision tower has no memory model", "remove it")
    at = outer.integer("insert_layer_id", default=6)
    config.ignore("insert_layer_id", "layer_norm_eps", "initializer_range", "model_type")
    activation = config.activation(default="gelu_pytorch_tanh")
    layer = tower_layer(width, heads, tower_mlp(width, inner, activation, ("mlp.fc1", "mlp.fc2")), "minicpm:unrotated")
    merger, unit = _merger(width, inner), WINDOW * WINDOW
    merges = mode == "16x"
    if merges and not 0 <= at < depth - 1:
        outer.fail("insert_layer_id", f"insert_layer_id is between 0 and {depth - 2}, of {depth} layers")
    wide = width * unit
    return Vision(
        kind="minicpm:minicpm",
        hidden=width,
        blocks=((layer, at + 1), (layer, depth - at - 1)) if merges else ((layer, depth),),
        channels=pixel_channels * patch * patch,
        merge=unit * unit if merges else unit,
        outputs=outputs,
        stem=(
            ParameterTensor("embeddings.patch_embedding.weight", (width, pixel_channels, patch, patch), "vision"),
            ParameterTensor("embeddings.patch_embedding.bias", (width,), "vision"),
            ParameterTensor("embeddings.position_embedding.weight", (image_size * image_size, width), "position"),
        ),
        between=Between(merger, unit) if merges else None,
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
        processor="minicpm:process",
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


MERGED_WINDOW = 4
"""Patches that become one between the layers, and again in the projector."""


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """``embeddings``: each patch looks up the nearest place. The hook is on ``patch_embedding``."""
    weight, bias, table = vision.stem
    x, live = require_input_grads(
        patch_convolution(ctx, vision, ctx.tokens, weight, bias, outside=True), require_grad=require_grad
    )
    return add(ctx.tape, x, _positions(ctx, table), "add positions"), live


def _positions(ctx: Context, table: ParameterTensor) -> Value:
    """``position_embedding(pos_ids)``: keeps the places, int64."""
    tape, rows = ctx.tape, ctx.tokens
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    out = tape.value((rows, table.shape[1]), p.dtype, "positions")
    places = tape.new((rows,), "int64", "places")
    return operator(tape, out, tape.parameter(p), (table.shape, p.dtype, "embedding backward"), saves=(places,))


def between(ctx: Context, vision: Vision, x: Value) -> Value:
    """``vit_merger``: attention in windows of four patches, their mean, and what two matrices make of all four."""
    tape, shape = ctx.tape, x.shape
    own = vision.between_tensors
    matrices = [t for t in own if t.linear]
    order = tape.new((shape[0],), "int64", "places of windows")
    h = layer_norm(ctx, x, _norm(own, "layer_norm1"))
    h = index(tape, h, order, shape)
    mixer = vision.blocks[0][0].mixer
    if isinstance(mixer, TowerAttention):
        tensors = tuple(t for t in own if ".self_attn." in t.name)
        h = tower_attention(ctx, mixer._replace(tensors=tensors, window=MERGED_WINDOW), h)
    merged = add(tape, index(tape, x, order, shape), h, "residual")
    del h
    mean = _mean(ctx, merged)
    flat = layer_norm(ctx, merged.view(shape[0] // MERGED_WINDOW, shape[1] * MERGED_WINDOW), _norm(own, "pre_norm"))
    inner = linear_layer(ctx, flat, matrices[-2], bias=True)
    del flat
    acted = unary(tape, inner, "gelu_pytorch_tanh")
    del inner
    out = linear_layer(ctx, acted, matrices[-1], bias=True)
    del acted
    return add(tape, out, mean, "mean of a window")


def _norm(tensors: tuple[ParameterTensor, ...], name: str) -> tuple[ParameterTensor, ...]:
    return tuple(t for t in tensors if f".{name}." in t.name)


def _mean(ctx: Context, x: Value) -> Value:
    """``patch.mean(dim=1)``: keeps nothing; backward divides an expanded gradient."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    return operator(
        tape, tape.value((shape[0] // MERGED_WINDOW, shape[1]), dtype, "mean of windows"), x, "mean backward"
    )


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, and ``merger`` of every picture: a slice of the rows, four patches side by side by a copy."""
    tape = ctx.tape
    x = last_hidden_state(ctx, vision, x)
    x = slices(tape, x, x.shape)[0]
    x = copy(tape, x, "merge patches").view(x.shape[0] // MERGED_WINDOW, x.shape[1] * MERGED_WINDOW)
    x = layer_norm(ctx, x, vision.projector[:2])
    first, second = (t for t in vision.projector if t.linear)
    inner = linear_layer(ctx, x, first, bias=True)
    del x
    acted = activation(tape, inner, "gelu")
    del inner
    return cat_image_tokens(ctx, linear_layer(ctx, acted, second, bias=True))


RESOLUTION, SLICES = 448, 9
"""Pixels to whose square a slice is scaled, and the most slices of a picture."""
WHY = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"
NUMBER = 3
"""Tokens in front of a picture that say its number."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Patches and image tokens of the picture as a whole and of its slices."""
    no_clips(frames)
    no_limits(limits)
    factor = vision.patch * math.isqrt(vision.merge)
    grid = _grid(height, width)
    whole = _patches(vision, _resized(height, width, factor, grows=grid == (1, 1)))
    sizes: tuple[int, ...] = (whole,)
    if grid != (1, 1):
        rows, columns = grid
        refined = _near(height, rows) / rows, _near(width, columns) / columns
        sizes += rows * columns * (_patches(vision, _resized(*refined, factor, grows=True)),)
    patches = sum(sizes)
    return ProcessedPicture(
        pictures=len(sizes),
        patches=patches,
        tokens=patches // vision.merge,
        separators=NUMBER + 2 * len(sizes) + grid[0] - 1,
        defaults=(("max_slices", SLICES, WHY),),
        sizes=sizes,
    )


def _patches(vision: Vision, sides: tuple[int, int]) -> int:
    return (sides[0] // vision.patch) * (sides[1] // vision.patch)


def _near(length: float, divisor: int) -> int:
    return max(round(length / divisor) * divisor, divisor)


def _resized(height: float, width: float, factor: int, *, grows: bool) -> tuple[int, int]:
    """``find_best_resize``."""
    if grows or height * width > RESOLUTION * RESOLUTION:
        ratio = width / height
        height = int(RESOLUTION / math.sqrt(ratio))
        width = int(height * ratio)
    return _near(height, factor), _near(width, factor)


def _grid(height: int, width: int) -> tuple[int, int]:
    """Rows and columns of slices (``get_sliced_grid``): as many as the area has, most like its shape."""
    many = min(math.ceil(width * height / (RESOLUTION * RESOLUTION)), SLICES)
    best, apart = (1, 1), math.inf
    if many <= 1:
        return best
    for count in (many - 1, many, many + 1):
        if count == 1 or count > SLICES:
            continue
        for rows in (n for n in range(1, count + 1) if count % n == 0):
            off = abs(math.log(width / height) - math.log(count // rows / rows))
            if off < apart or (off == apart and rows > best[0]):
                best, apart = (rows, count // rows), off
    return best


def unrotated(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """MiniCPM-V: a matrix each for q, k and v of all pictures' rows, without rotations."""
    q, k, v = projections(ctx, attention, x)
    del x
    return attention_per_picture(ctx, attention, q, k, v)


FORWARDS = {
    "minicpm": TowerForward(stem, project, between=between),
}
"""By name, the forward passes of a kind of tower."""
