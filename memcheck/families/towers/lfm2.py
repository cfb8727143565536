"""LFM2-VL: SigLIP 2 on tiles and pictures that are padded to as many patches, and two matrices.

modeling_lfm2_vl.py, modeling_siglip2.py of transformers 5.23.

LFM2-VL: rows of padded pictures, positions resized to each, pixels unshuffled (modeling_lfm2_vl.py).

LFM2-VL's processor: small pictures keep their shape, large ones become tiles and an overview; all are padded.

transformers 5.23 models/lfm2_vl/image_processing_lfm2_vl.py and processing_lfm2_vl.py.
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.operator import add, copy, operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    SIGLIP,
    Limits,
    ProcessedPicture,
    TowerForward,
    no_clips,
    no_limits,
    norm_pair,
    read_layer_sizes,
    square_side,
    tower_layer,
    tower_mlp,
    two_matrices,
)
from memcheck.families.towers.forward_parts import (
    flat_pixel_values,
    last_hidden_state,
    layer_norm,
    linear_layer,
    projector_mlp,
    require_input_grads,
    return_image_tokens,
)
from memcheck.families.towers.processors import smart_resize
from memcheck.families.towers.siglip import SIGLIP_LAYERS, pooling_head
from memcheck.models.decoder import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

ROWS = 1024
"""Patches to which the released checkpoints' processor pads: of a tile of 512 x 512 pixels, and of 256 image tokens."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of LFM2-VL (``model_type: lfm2_vl``): SigLIP 2, pixel unshuffle by ``downsample_factor``, two
    matrices.
    """
    outer, outputs = model.outer, model.language.hidden_size
    kind = config.text("model_type", default="siglip2_vision_model")
    if kind != "siglip2_vision_model":
        config.fail("model_type", f"memcheck reads no LFM2-VL with a {kind} tower", "SigLIP 2's is read")
    size = read_layer_sizes(config, SIGLIP_LAYERS)
    width, patch = size.width, square_side(config, "patch_size", 16)
    channels = config.integer("num_channels", default=3) * patch * patch
    position_rows = config.integer("num_patches", default=256)
    mlp = tower_mlp(width, size.inner, config.activation(default="gelu_pytorch_tanh"), SIGLIP.mlp)
    config.ignore("layer_norm_eps", "initializer_range")
    config.dropout("attention_dropout")
    factor = outer.integer("downsample_factor", default=2) ** 2
    inner, bias = outer.integer("projector_hidden_size", default=2560), outer.flag("projector_bias", default=True)
    norm = norm_pair("layer_norm", width * factor) if outer.flag("projector_use_layernorm", default=True) else ()
    tower = Vision(
        kind="lfm2:lfm2",
        hidden=width,
        blocks=((tower_layer(width, size.heads, mlp, "masked"), size.depth),),
        values_per_patch=channels,
        patches_per_token=factor,
        token_width=outputs,
        stem_tensors=(
            *linear("embeddings.patch_embedding", width, channels, "vision", "none", bias=True),
            ParameterTensor("embeddings.position_embedding.weight", (position_rows, width), "position"),
        ),
        projector_tensors=(*norm, *two_matrices(("linear_1", "linear_2"), width * factor, inner, outputs, bias=bias)),
        embedding_can_be_hooked=True,
        closing_tensors=norm_pair("post_layernorm", width),
        rows_per_tile=ROWS,
        tokens_per_tile=ROWS // factor,
        position_bytes_per_patch=4,
        patch_side=patch,
        heads=size.heads,
        activation=outer.activation("projector_hidden_act", default="gelu"),
        processor="lfm2:process",
        separator_tokens=2,
        path="vision_tower",
        projector_path="multi_modal_projector",
    )
    return tower._replace(unused_tensors=pooling_head(config, tower))


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Embed the patches and add positions; also return the padding mask where every layer takes it as an argument.

    ``require_grad``: a hook makes the patch matrix's output require gradients.
    """
    tape = ctx.tape
    matrix, _, table = vision.stem_tensors
    pixels = flat_pixel_values(ctx, vision)
    x, live = require_input_grads(linear_layer(ctx, pixels, matrix, bias=True), require_grad=require_grad)
    del pixels
    x = add(tape, x, _positions(ctx, table, x.shape), "add positions")
    if ctx.setting.attention not in ("flash", "flex"):
        patches_per_picture = ctx.tokens // max(1, ctx.setting.images)
        dtype = x.dtype if ctx.setting.attention == "eager" else "bool"
        masks = live if ctx.setting.tower_checkpointed else ctx.extra_outputs  # an argument of every layer
        masks.append(
            tape.value((ctx.setting.images, 1, patches_per_picture, patches_per_picture), dtype, "padding mask")
        )
    return x, live


def _positions(ctx: Context, table: ParameterTensor, shape: tuple[int, ...]) -> Value:
    """Interpolate learned positions for each picture: ``shape`` (``resize_positional_embeddings``).

    Each picture's positions are written into rows of one tensor. The backward of each write clones the gradient
    (CopySlices).
    """
    tape = ctx.tape
    parameter = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    trained, dtype, table_shape = parameter.requires_grad, parameter.dtype, table.shape
    out = tape.value(shape, dtype, "resized positions")

    def positions_backward(grad: Storage) -> list[Storage | None]:
        """Return the table's gradient, a sum over pictures; before it exist CopySlices' clone and a picture's part."""
        clone = tape.new(shape, dtype, "CopySlices backward")
        tape.new(table_shape, dtype, "interpolate backward")
        del clone
        return [tape.new(table_shape, dtype, "sum over pictures") if trained else None]

    return tape.record(out, (tape.parameter(parameter),), positions_backward)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm``, and ``multi_modal_projector`` on each picture's rows without padding."""
    x = last_hidden_state(ctx, vision, x)
    rows = ctx.setting.image_tokens * vision.patches_per_token or x.shape[0]
    x = _real(ctx, x, (rows, x.shape[1]))
    x = copy(ctx.tape, copy(ctx.tape, x, "pixel unshuffle"), "pixel unshuffle")
    x = x.view(rows // vision.patches_per_token, vision.hidden * vision.patches_per_token)
    norm = vision.projector_tensors[:2] if vision.projector_tensors[0].group == "norm" else ()
    x = layer_norm(ctx, x, norm)
    return return_image_tokens(ctx, projector_mlp(ctx, vision, x, vision.projector_tensors[len(norm) :]), joins=True)


def _real(ctx: Context, x: Value, shape: tuple[int, int]) -> Value:
    """Return ``feature[:length]``, the rows without padding: a view, whose gradient is padded with zeros."""
    tape = ctx.tape
    if shape == x.shape:
        return x
    return operator(tape, Value(x.storage, shape, x.dtype), x, "slice backward")


LEAST_TOKENS, TOLERANCE, TILES, SIDE = 64, 2.0, (2, 10), 512
WHY = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count the patches and image tokens of a picture; padding gives patches and no tokens.

    A picture with more than twice the processor's maximum of pixels becomes tiles and a thumbnail. ``height``,
    ``width``: in pixels.
    """
    no_clips(frames)
    no_limits(limits)
    factor = vision.patch_side * math.isqrt(vision.patches_per_token)
    max_pixels = vision.tokens_per_tile * factor * factor
    sides = smart_resize(height, width, factor, (LEAST_TOKENS * factor * factor, max_pixels))
    thumbnail_tokens = (sides[0] // factor) * (sides[1] // factor)
    rounded = [max(vision.patch_side, round(side / factor) * factor) for side in (height, width)]
    defaults = (("max_tiles", TILES[1], WHY),)
    if rounded[0] * rounded[1] <= max_pixels * TOLERANCE:
        return ProcessedPicture(
            pictures=1,
            patches=vision.rows_per_tile,
            image_tokens=thumbnail_tokens,
            separator_tokens=2,
            defaults=defaults,
        )
    tiles = _tiles(height, width)
    tokens = tiles * (SIDE // factor) ** 2 + thumbnail_tokens
    return ProcessedPicture(
        pictures=tiles + 1,
        patches=(tiles + 1) * vision.rows_per_tile,
        image_tokens=tokens,
        separator_tokens=3 + tiles,
        defaults=defaults,
    )


def _tiles(height: int, width: int) -> int:
    """Count the tiles of the grid whose aspect ratio is nearest to the picture's (``find_closest_aspect_ratio``).

    Of equally near grids the larger one wins if the picture has more than half of its pixels. ``height``, ``width``:
    in pixels.
    """
    min_tiles, max_tiles = TILES
    grids = []
    for columns in range(1, max_tiles + 1):
        grids += [(columns, rows) for rows in range(1, max_tiles + 1) if min_tiles <= columns * rows <= max_tiles]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    best, smallest_difference = (1, 1), math.inf
    for columns, rows in grids:
        difference = abs(width / height - columns / rows)
        if difference < smallest_difference:
            best, smallest_difference = (columns, rows), difference
        elif difference == smallest_difference and width * height > 0.5 * SIDE * SIDE * columns * rows:
            best = (columns, rows)
    return best[0] * best[1]


FORWARDS = {
    "lfm2": TowerForward(stem, project, wrapped_modules=("layers", "embedding")),
}
"""By name, the forward passes of a kind of tower."""
