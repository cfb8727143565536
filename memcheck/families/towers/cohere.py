"""Aya Vision and Command A Vision: SigLIP's tiles, pixels shuffled, one matrix to two halves that gate each other.

modeling_aya_vision.py, modeling_cohere2_vision.py of transformers 5.23.

Command A Vision: pixels are shuffled, and one matrix makes two halves (modeling_cohere2_vision.py).

Aya Vision: pixels are shuffled and normed, and one matrix makes two halves (modeling_aya_vision.py).
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import mul
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import Limits, ProcessedPicture, TowerForward, no_clips, no_limits, norm_pair
from memcheck.families.towers.forward_parts import (
    last_hidden_state,
    layer_norm,
    linear_layer,
    pixel_shuffle,
    return_image_tokens,
    unused_post_layernorm,
)
from memcheck.families.towers.processors import DEFAULT_PROCESSOR, equal_tiles
from memcheck.families.towers.siglip import pooling_head, siglip, siglip_stem
from memcheck.models.decoder import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

COHERE2_TILES = 12
"""Most tiles of a picture in addition to the overview."""


def read_aya(config: ConfigReader, model: TowerContext) -> Vision:
    """Read Aya Vision's tower: SigLIP, whose last layer's rows are shuffled, normed and projected."""
    outer = model.outer
    layer = outer.raw("vision_feature_layer")
    if layer not in (None, -1) or outer.text("vision_feature_select_strategy", default="full") != "full":
        outer.fail("vision_feature_layer", "only all rows of the last layer have a memory model")
    outer.ignore("adapter_layer_norm_eps")
    tower = siglip(config, model, "cohere:aya_vision", attention="separate")
    factor = outer.integer("downsample_factor", default=2) ** 2
    inner = outer.integer("alignment_intermediate_size", default=model.language.hidden_size)
    return _with_pixel_shuffle(config, model, tower, factor, inner)._replace(
        closing_tensors=(),
        unused_tensors=(*tower.closing_tensors, *pooling_head(config, tower)),
        projector_tensors=(
            *norm_pair("layernorm", tower.hidden * factor),
            *_projector_tensors(model, tower.hidden * factor, inner),
        ),
        processor="processors:process_internvl",
    )


def read_cohere2(config: ConfigReader, model: TowerContext) -> Vision:
    """Read Command A Vision's tower: SigLIP with its last norm, pixel shuffle and a gated projector."""
    tower = siglip(config, model, "cohere:cohere2_vision", attention="separate")
    factor = model.outer.integer("downsample_factor", default=2) ** 2
    inner = model.outer.integer("alignment_intermediate_size", default=36864)
    return _with_pixel_shuffle(config, model, tower, factor, inner)._replace(
        unused_tensors=pooling_head(config, tower),
        projector_tensors=_projector_tensors(model, tower.hidden * factor, inner),
        processor="cohere:process_cohere2",
    )


def _projector_tensors(model: TowerContext, width: int, inner: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of the projector's two matrices. The first computes both halves of a gated activation."""
    first = linear("linear_1", inner, width, "projector", "none", bias=True)
    return first + linear("linear_2", model.language.hidden_size, inner // 2, "projector", "none", bias=True)


def _with_pixel_shuffle(config: ConfigReader, model: TowerContext, tower: Vision, factor: int, inner: int) -> Vision:
    """Return the tower with a pixel shuffle, which makes one image token of ``factor`` patches, and a projector.

    ``inner``: the projector's inner width.
    """
    model.outer.ignore("image_seq_length")
    if inner % 2:
        model.outer.fail("alignment_intermediate_size", f"{inner} cannot be halved")
    if tower.rows_per_tile % factor:
        config.fail(
            "image_size", f"{tower.rows_per_tile} patches of a tile are no multiple of the {factor} that are merged"
        )
    return tower._replace(patches_per_token=factor, tokens_per_tile=tower.rows_per_tile // factor)


def cohere2_vision_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm`` and ``multi_modal_projector`` (Cohere2VisionMultiModalProjector.forward)."""
    x = pixel_shuffle(ctx, vision, last_hidden_state(ctx, vision, x))
    return return_image_tokens(ctx, gated_halves(ctx, x, vision.projector_tensors), joins=False)


def gated_halves(ctx: Context, x: Value, tensors: tuple[ParameterTensor, ...]) -> Value:
    """Compute ``linear_2(silu(gate) * x)``, where ``x`` and ``gate`` are the halves of the output of ``linear_1``."""
    tape = ctx.tape
    first, _, second, _ = tensors
    joint = linear_layer(ctx, x, first, bias=True)
    del x
    half = (*joint.shape[:-1], joint.shape[-1] // 2)
    up, gate = tape.views(joint, half, half)
    del joint
    inner = mul(tape, activation(tape, gate, "silu"), up)
    return linear_layer(ctx, inner, second, bias=True)


def aya_vision_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector`` of the last layer's rows: image tokens [rows / merge, text hidden].

    AyaVisionMultiModalProjector.forward. The tower's output also holds the rows after its norm, which nothing reads.
    """
    unused_post_layernorm(ctx, x)
    x = layer_norm(ctx, pixel_shuffle(ctx, vision, x), vision.projector_tensors)
    return return_image_tokens(ctx, gated_halves(ctx, x, vision.projector_tensors[2:]), joins=False)


FORWARDS = {
    "cohere2_vision": TowerForward(siglip_stem, cohere2_vision_project, wrapped_modules=("layers", "embedding")),
    "aya_vision": TowerForward(siglip_stem, aya_vision_project, wrapped_modules=("layers", "embedding")),
}


def process_cohere2(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens of a picture: tiles of the best grid, and a thumbnail if there are several.

    The best grid scales the picture by the smallest factor of at least 1, else by the largest below 1
    (``get_optimal_tiled_canvas``, transformers 5.23 models/cohere2_vision/image_processing_cohere2_vision.py).

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    tile_side = vision.patch_side * math.isqrt(vision.rows_per_tile)
    grids = []
    for columns in range(1, COHERE2_TILES + 1):
        grids += [(columns, rows) for rows in range(1, COHERE2_TILES // columns + 1)]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    scales = [min(columns * tile_side / width, rows * tile_side / height) for columns, rows in grids]
    enlarging = [factor for factor in scales if factor >= 1]
    columns, rows = grids[scales.index(min(enlarging) if enlarging else max(scales))]
    tiles = rows * columns + (rows * columns > 1)
    return equal_tiles(vision, tiles, 2 + tiles)._replace(defaults=(("max_patches", COHERE2_TILES, DEFAULT_PROCESSOR),))
