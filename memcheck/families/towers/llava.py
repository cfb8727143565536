"""LLaVA, LLaVA-NeXT and LLaVA-OneVision: CLIP, Pixtral or SigLIP as the tower, two matrices as the projector.

modeling_llava.py, modeling_llava_next.py, modeling_clip.py of transformers 5.23.

LLaVA on CLIP: a class token, a norm before the layers, two matrices (modeling_llava.py, modeling_clip.py).

LLaVA-NeXT: tiles are put together, unpadded, and a learned token ends each row (modeling_llava_next.py).

LLaVA-OneVision: SigLIP's tiles of a grid, put together and made smaller (modeling_llava_onevision.py).

LLaVA-NeXT and LLaVA-OneVision: the grid of tiles that wastes least, image tokens without its padding.

transformers 5.23 image_processing_utils.py (``select_best_resolution``) and models/llava_next/processing_llava_next.py
(``_get_number_of_features``); grids of the released checkpoints' ``image_grid_pinpoints``.
"""

from __future__ import annotations

import math
from itertools import product

from memcheck.autograd.context import Context
from memcheck.autograd.operator import copy
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    SIGLIP,
    LayerSizes,
    Limits,
    Pixels,
    ProcessedPicture,
    TowerForward,
    no_clips,
    no_limits,
    norm_pair,
    patch_convolution_tensors,
    read_layer_sizes,
    read_pixels,
    square_side,
    tower_layer,
    tower_mlp,
    two_matrices,
)
from memcheck.families.towers.forward_parts import (
    add_position_embedding,
    drop_class_tokens,
    hold_pixel_values,
    layer_norm,
    patch_convolution,
    prepend_class_token,
    projector_mlp,
    require_input_grads,
    return_image_tokens,
    unused_post_layernorm,
)
from memcheck.families.towers.pixtral import pixtral
from memcheck.families.towers.siglip import SIGLIP_PIXELS, pooling_head, siglip, siglip_stem
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import OtherTower, Vision

CLIP_LAYERS, CLIP_PIXELS = (
    LayerSizes(width=768, heads=12, inner=3072, depth=12),
    Pixels(3, side_pixels=224, patch_side=32),
)
"""What CLIP's class takes where a configuration is silent."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of LLaVA 1.5, and Pixtral as it is converted for transformers."""
    model.outer.ignore("image_seq_length", "vision_feature_select_strategy")
    kind = config.text("model_type", default="clip_vision_model")
    if kind == "pixtral":
        tower = pixtral(config, model, "pixtral:pixtral")
        _feature_layer(model, -1)
        return tower._replace(
            projector_tensors=projector(model, tower.hidden), patches_per_token=1, processor="pixtral:process"
        )
    if kind != "clip_vision_model":
        config.fail("model_type", f"memcheck reads no LLaVA with a {kind} tower", "read are CLIP's and Pixtral's")
    return _clip(config, model, "llava:llava")._replace(processor="processors:process_square")


def read_next(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of LLaVA-NeXT: tiles of a grid and an overview, unpadded, with a learned token after each row."""
    outputs = model.language.hidden_size
    model.outer.ignore("image_seq_length", "vision_feature_select_strategy", "image_grid_pinpoints")
    model.outer.ignore("use_image_newline_parameter")
    newline = ParameterTensor("image_newline", (outputs,), "projector")
    tower = _clip(config, model, "llava:llava_next")
    return tower._replace(projector_tensors=(newline, *tower.projector_tensors), processor="llava:process")


def read_next_video(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of LLaVA-NeXT-Video on pictures: LLaVA-NeXT. Clips, whose frames are pooled, have no memory
    model.
    """
    model.outer.ignore("spatial_pool_mode", "spatial_pool_stride", "video_seq_length")
    return read_next(config, model)


def read_video(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of Video-LLaVA on pictures: LLaVA with a second tower for clips, which never runs here, because
    memcheck has no memory model of clips.
    """
    model.outer.ignore("image_seq_length", "video_seq_length")
    if config.text("model_type", default="clip_vision_model") != "clip_vision_model":
        config.fail("model_type", "memcheck reads no Video-LLaVA with another tower than CLIP's")
    tower = _clip(config, model, "llava:llava")
    layers = (*tower.blocks, *tower.idle_blocks)
    clips = OtherTower(
        part="vision", blocks=layers, tensors=(*tower.stem_tensors, *tower.unused_tensors), path="model.video_tower."
    )
    return tower._replace(processor="processors:process_square", other_towers=(clips,), path="image_tower")


def read_onevision(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of LLaVA-OneVision on pictures: SigLIP's rows before its last norm, tiles of a grid and an
    overview.
    """
    outer = model.outer
    outer.ignore("image_grid_pinpoints")
    kind = config.text("model_type", default="siglip_vision_model")
    if kind != "siglip_vision_model":
        config.fail("model_type", f"memcheck reads no LLaVA-OneVision with a {kind} tower", "SigLIP's is read")
    _feature_layer(model, -1)
    if outer.raw("vision_feature_layer") not in (None, -1):
        outer.fail("vision_feature_layer", "only rows of the last layer have a memory model")
    if outer.text("vision_feature_select_strategy", default="full") != "full":
        outer.fail("vision_feature_select_strategy", "a tower without a class token has only full features")
    if outer.text("vision_aspect_ratio", default="anyres_max_9") != "anyres_max_9":
        outer.fail("vision_aspect_ratio", "only anyres_max_9 has a memory model")
    tower = siglip(config, model, "llava:llava_onevision", attention="separate")
    newline = ParameterTensor("image_newline", (model.language.hidden_size,), "projector")
    return tower._replace(
        closing_tensors=(),
        unused_tensors=(*tower.closing_tensors, *pooling_head(config, tower)),
        projector_tensors=(newline, *projector(model, tower.hidden)),
        tokens_per_tile=tower.rows_per_tile,
        activation=outer.activation("projector_hidden_act", default="gelu"),
        largest_picture=square_side(config, "image_size", SIGLIP_PIXELS.side_pixels),
        processor="llava:process_onevision",
    )


def projector(model: TowerContext, width: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of LLaVA's projector: ``linear_1`` and ``linear_2``, with an activation between them.

    ``width``: channels of the tower's rows.
    """
    outer, outputs = model.outer, model.language.hidden_size
    bias = outer.flag("multimodal_projector_bias", default=True)
    return two_matrices(("linear_1", "linear_2"), width, outputs, outputs, bias=bias)


def _feature_layer(model: TowerContext, default: int) -> int:
    """Read which hidden states are the features (``vision_feature_layer``), counted from the last: -1 or less."""
    layer = model.outer.raw("vision_feature_layer")
    if layer is None:
        return default
    if not isinstance(layer, int) or isinstance(layer, bool) or layer >= 0:
        model.outer.fail(
            "vision_feature_layer", f"vision_feature_layer = {layer!r} has no memory model", "one layer from the end is"
        )
    return layer


def _used_layers(model: TowerContext, depth: int) -> int:
    """Read how many of the tower's ``depth`` layers run before its features are taken: all but the last by default."""
    used_layers = depth + 1 + _feature_layer(model, -2)
    strategy = model.outer.text("vision_feature_select_strategy", default="default")
    if strategy != "default" or not 0 < used_layers <= depth:
        model.outer.fail(
            "vision_feature_select_strategy", f"{strategy!r} features of layer {used_layers} have no memory model"
        )
    return used_layers


def _clip(config: ConfigReader, model: TowerContext, kind: str) -> Vision:
    """Read CLIP's tower. The features are those of a layer before the last, so later layers get no gradient.

    ``kind``: its forward passes, as :attr:`Vision.kind`. A class token precedes the patches.
    """
    size, pixels = read_layer_sizes(config, CLIP_LAYERS), read_pixels(config, CLIP_PIXELS)
    config.ignore("projection_dim", "vocab_size", "layer_norm_eps", "initializer_factor")
    config.dropout("attention_dropout")
    mlp = tower_mlp(size.width, size.inner, config.activation(default="quick_gelu"), SIGLIP.mlp)
    block = tower_layer(size.width, size.heads, mlp, "separate")
    used_layers, rows = _used_layers(model, size.depth), pixels.patches + 1
    return Vision(
        kind=kind,
        hidden=size.width,
        blocks=((block, used_layers),),
        idle_blocks=((block, size.depth - used_layers),) if used_layers < size.depth else (),
        values_per_patch=pixels.channels,
        patches_per_token=1,
        token_width=model.language.hidden_size,
        stem_tensors=(
            ParameterTensor("embeddings.class_embedding", (size.width,), "vision"),
            *patch_convolution_tensors("embeddings.patch_embedding", size.width, pixels, bias=False),
            ParameterTensor("embeddings.position_embedding.weight", (rows, size.width), "position"),
            *norm_pair("pre_layrnorm", size.width),
        ),
        projector_tensors=projector(model, size.width),
        embedding_can_be_hooked=True,
        unused_tensors=norm_pair("post_layernorm", size.width),
        rows_per_tile=rows,
        tokens_per_tile=pixels.patches,
        class_tokens_per_tile=1,
        patch_side=pixels.patch_side,
        heads=size.heads,
        activation=model.outer.activation("projector_hidden_act", default="gelu"),
        path="vision_tower",
        projector_path="multi_modal_projector",
    )


def llava_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings`` and ``pre_layrnorm``: patches and a class token, with positions. The hook is on
    ``patch_embedding``.

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    token, weight, table, *norm = vision.stem_tensors
    patches = ctx.tokens - ctx.setting.images * vision.class_tokens_per_tile
    x, live = require_input_grads(patch_convolution(ctx, vision, patches, weight, None), require_grad=require_grad)
    x = add_position_embedding(ctx, prepend_class_token(ctx, x, token, ctx.tokens), table)
    return layer_norm(ctx, x, tuple(norm)), live


def llava_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector`` (two matrices) on the patches of the hidden layer that the config selects."""
    x = drop_class_tokens(ctx, vision, x)
    return return_image_tokens(ctx, projector_mlp(ctx, vision, x, vision.projector_tensors, copies=True), joins=True)


def llava_next_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute LLaVA's stem on the tiles of all pictures, which upstream joins in one tensor.

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    hold_pixel_values(ctx, vision, ctx.tokens - ctx.setting.images * vision.class_tokens_per_tile, "fp32")
    return llava_stem(ctx, vision, require_grad)


def llava_next_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector`` on the patches, and join the tiles with ``pack_image_features``."""
    newline, *matrices = vision.projector_tensors
    x = drop_class_tokens(ctx, vision, x)
    x = projector_mlp(ctx, vision, x, tuple(matrices), copies=True)
    return packed(ctx, x, newline)


def packed(ctx: Context, x: Value, newline: ParameterTensor) -> Value:
    """Join the tiles of the grid without padding, with a token after each row, and append the overview
    (``pack_image_features``).
    """
    x = copy(ctx.tape, x, "tiles put together")
    x = prepend_class_token(ctx, x, newline, ctx.setting.image_tokens or x.shape[0])
    return return_image_tokens(ctx, copy(ctx.tape, x, "cat overview"), joins=True)


def llava_onevision_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute SigLIP's stem on the tiles of all pictures, which upstream joins in one tensor.

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    hold_pixel_values(ctx, vision, ctx.tokens, "fp32")
    return siglip_stem(ctx, vision, require_grad)


def llava_onevision_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector`` on rows before the tower's last norm, and join the tiles
    (``pack_image_features``).

    The tower's output also holds the normed rows, which nothing reads.
    """
    newline, *matrices = vision.projector_tensors
    unused_post_layernorm(ctx, x)
    x = projector_mlp(ctx, vision, x, tuple(matrices), copies=ctx.setting.images > 1)
    return packed(ctx, x, newline)


GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
"""Rows and columns of tiles."""
ONEVISION_GRID_SIDE, ONEVISION_MAX_TILES, ONEVISION_SHRINK_RATIO = 6, 9, 1.1
"""LLaVA-OneVision's grids, the number of tiles whose patches are left (``anyres_max_9``), and the ratio above which
patches are dropped.
"""
WHY = "image_grid_pinpoints of the released checkpoint's processor"


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count the tiles, patches and image tokens of a picture: a grid of tiles and an overview.

    A learned token ends each row of what is left of the grid without padding.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    tile_side = math.isqrt(vision.tokens_per_tile)
    rows, columns = _best_grid(height, width, vision.patch_side * tile_side)
    unpadded = _unpadded(height, width, rows * tile_side, columns * tile_side)
    tiles = rows * columns + 1
    default = ("image_grid_pinpoints", [list(grid) for grid in GRIDS], WHY)
    return ProcessedPicture(
        pictures=tiles,
        patches=tiles * vision.rows_per_tile,
        image_tokens=vision.tokens_per_tile + unpadded[0] * unpadded[1] + unpadded[0],
        defaults=(default,),
    )


def process_onevision(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count the tiles, patches and image tokens of a picture in a grid of up to six by six tiles and an overview.

    The patches of more than nine tiles are downsampled (processing_llava_onevision.py, ``_get_number_of_features``).
    Each of several pictures of a sample is one tile.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    tile_side = math.isqrt(vision.tokens_per_tile)
    sides = range(1, ONEVISION_GRID_SIDE + 1)
    grids = tuple(product(sides, sides))
    rows, columns = _best_grid(height, width, vision.largest_picture, grids)
    tiles = rows * columns + 1
    unpadded = _unpadded(height, width, rows * tile_side, columns * tile_side)
    ratio = math.sqrt(unpadded[0] * unpadded[1] / (ONEVISION_MAX_TILES * vision.tokens_per_tile))
    if ratio > ONEVISION_SHRINK_RATIO:
        unpadded = int(unpadded[0] // ratio), int(unpadded[1] // ratio)
    return ProcessedPicture(
        pictures=tiles,
        patches=tiles * vision.rows_per_tile,
        image_tokens=vision.tokens_per_tile + unpadded[0] * unpadded[1] + unpadded[0],
        defaults=(("image_grid_pinpoints", f"{ONEVISION_GRID_SIDE} x {ONEVISION_GRID_SIDE} tiles at most", WHY),),
        each_of_several=(1, vision.rows_per_tile, vision.tokens_per_tile + 1),
    )


def _best_grid(height: int, width: int, side: int, grids: tuple[tuple[int, int], ...] = GRIDS) -> tuple[int, int]:
    """Return the rows and columns of tiles that keep most of the picture's pixels (``select_best_resolution``).

    Of such ``grids`` the one with the fewest empty pixels is taken. ``height``, ``width``: in pixels. ``side``: of a
    tile, in pixels.
    """
    best_grid, most_pixels, least_wasted = grids[0], 0, math.inf
    for rows, columns in grids:
        scale = min(columns * side / width, rows * side / height)
        effective = min(int(width * scale) * int(height * scale), width * height)
        wasted = rows * columns * side * side - effective
        if effective > most_pixels or (effective == most_pixels and wasted < least_wasted):
            best_grid, most_pixels, least_wasted = (rows, columns), effective, wasted
    return best_grid


def _unpadded(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Return how many rows and columns of patches are left when the picture's padding on both sides is cut off.

    ``height``, ``width``: of the picture in pixels. ``rows``, ``columns``: of patches with the padding.
    """
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        return rows - (rows - kept) // 2 * 2, columns
    kept = int(round(width * (rows / height), 7))
    return rows, columns - (columns - kept) // 2 * 2


FORWARDS = {
    "llava": TowerForward(llava_stem, llava_project, wrapped_modules=("layers", "embedding")),
    "llava_next": TowerForward(llava_next_stem, llava_next_project, wrapped_modules=("layers", "embedding")),
    "llava_onevision": TowerForward(
        llava_onevision_stem, llava_onevision_project, wrapped_modules=("layers", "embedding")
    ),
}
