"""Llama 4: tiles of 336 pixels with a class token, rotated as complex numbers, pixels shuffled (modeling_llama4.py).

Llama 4: unfolded patches times a matrix, followed by a class token, a pixel-shuffle network (modeling_llama4.py).
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import copy
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    LayerNames,
    LayerSizes,
    Limits,
    Pixels,
    ProcessedPicture,
    TowerForward,
    no_clips,
    no_limits,
    norm_pair,
    read_layer_sizes,
    read_pixels,
    refuse_dropout,
    tower_layer,
    tower_mlp,
)
from memcheck.families.towers.attention import separate_attention
from memcheck.families.towers.forward_parts import (
    add_position_embedding,
    drop_class_tokens,
    keep_in_variable,
    layer_norm,
    linear_layer,
    pixel_shuffle,
    prepend_class_token,
    require_input_grads,
    return_image_tokens,
)
from memcheck.families.towers.processors import DEFAULT_PROCESSOR, equal_tiles
from memcheck.models.decoder import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

NAMES = LayerNames(output="self_attn.o_proj", norms=("input_layernorm", "post_attention_layernorm"))
MOST_TILES = 16
"""Most tiles of a picture in addition to the overview."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: llama4``. The pixel-shuffle network belongs to the tower, the last matrix is the
    projector.
    """
    outputs = model.language.hidden_size
    size = read_layer_sizes(config, LayerSizes(width=768, heads=16, inner=5632, depth=34))
    pixels, width, inner = read_pixels(config, Pixels(3, side_pixels=448, patch_side=14)), size.width, size.inner
    config.ignore("hidden_act", "norm_eps", "vision_feature_layer", "vision_feature_select_strategy", "rope_theta")
    config.ignore("rope_parameters", "initializer_range", "multi_modal_projector_bias")
    for key in ("attention_dropout", "projector_dropout"):
        refuse_dropout(config, key, "it is 0 in released files")
    fc1_outputs = config.integer("projector_input_dim", default=4096)
    fc2_outputs = config.integer("projector_output_dim", default=4096)
    features = config.integer("vision_output_dim", default=7680)
    factor = round(1 / config.number("pixel_shuffle_ratio", default=0.5)) ** 2
    if width * factor != inner:
        config.fail("intermediate_size", f"{factor} shuffled patches are {width * factor} wide, not {inner}")
    mlp = tower_mlp(width, inner, "gelu", NAMES.mlp)
    block = tower_layer(width, size.heads, mlp, "llama4:rotated_as_complex", NAMES, softmax_fp32=False)
    rows = pixels.patches + 1
    return Vision(
        kind="llama4:llama4",
        hidden=width,
        blocks=((block, size.depth),),
        values_per_patch=pixels.channels,
        patches_per_token=factor,
        token_width=outputs,
        stem_tensors=(
            ParameterTensor("class_embedding", (width,), "vision"),
            ParameterTensor("positional_embedding_vlm", (rows, width), "position"),
            *linear("patch_embedding.linear", width, pixels.channels, "vision", "none"),
            *norm_pair("layernorm_pre", width),
        ),
        projector_tensors=linear("linear_1", outputs, features, "projector", "none"),
        embedding_can_be_hooked=True,
        closing_tensors=(
            *norm_pair("layernorm_post", width),
            *linear("vision_adapter.mlp.fc1", fc1_outputs, inner, "mlp", "none"),
            *linear("vision_adapter.mlp.fc2", fc2_outputs, fc2_outputs, "mlp", "none"),
        ),
        rows_per_tile=rows,
        tokens_per_tile=pixels.patches // factor,
        class_tokens_per_tile=1,
        patch_side=pixels.patch_side,
        processor="llama4:process",
        heads=size.heads,
        path="vision_model",
        without_model_prefix=True,
        layers_path="model.layers",
        projector_path="multi_modal_projector",
    )


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embedding`` (unfold and a matrix), class token, positions and ``layernorm_pre``: [patches,
    hidden].

    The table of rotations is a buffer.
    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    tape = ctx.tape
    token, table, matrix, *norm = vision.stem_tensors
    patches = ctx.tokens - ctx.setting.images * vision.class_tokens_per_tile
    unfolded = tape.value((patches, vision.values_per_patch), ctx.setting.param_dtype, "unfold")
    x, live = require_input_grads(
        linear_layer(ctx, copy(tape, unfolded, "contiguous"), matrix), require_grad=require_grad
    )
    del unfolded
    x = add_position_embedding(ctx, prepend_class_token(ctx, x, token, ctx.tokens), table, looked_up=False)
    return layer_norm(ctx, x, tuple(norm)), live


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``layernorm_post``, ``vision_adapter`` (pixel shuffle and two matrices) and ``multi_modal_projector``."""
    tape = ctx.tape
    fc1, fc2 = vision.closing_tensors[2:]
    x = drop_class_tokens(ctx, vision, layer_norm(ctx, x, vision.closing_tensors))
    x = activation(tape, linear_layer(ctx, pixel_shuffle(ctx, vision, x), fc1), "gelu")
    x = activation(tape, linear_layer(ctx, x, fc2), "gelu")
    keep_in_variable(ctx, x)  # `last_hidden_state`
    return return_image_tokens(ctx, linear_layer(ctx, x, vision.projector_tensors[0]), joins=False)


def rotated_as_complex(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute attention whose queries and keys are rotated as complex numbers, on fp32 copies."""
    return separate_attention(ctx, attention, x, rotation="complex")


FORWARDS = {
    "llama4": TowerForward(stem, project),
}
"""By name, the forward passes of a kind of tower."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens of a picture: a canvas of at most sixteen tiles, and an overview if it has
    several.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    tile_side = vision.patch_side * math.isqrt(vision.rows_per_tile - vision.class_tokens_per_tile)
    rows, columns = llama4_canvas(height, width, tile_side, MOST_TILES)
    tiles = rows * columns
    has_overview = tiles > 1
    picture = equal_tiles(vision, tiles + has_overview, 3 + tiles * has_overview)
    return picture._replace(defaults=(("max_patches", MOST_TILES, DEFAULT_PROCESSOR),))


def llama4_canvas(height: int, width: int, tile_side: int, max_tiles: int) -> tuple[int, int]:
    """Return rows and columns of the canvas of at most ``max_tiles`` tiles to which a picture is scaled.

    ``height``, ``width``, ``tile_side``: in pixels.
    """
    grids = [
        (rows, tiles // rows) for tiles in range(max_tiles, 0, -1) for rows in range(1, tiles + 1) if tiles % rows == 0
    ]
    scales = [(min(rows * tile_side / height, columns * tile_side / width), rows, columns) for rows, columns in grids]
    enlarging = [scale for scale, _, _ in scales if scale >= 1]
    best_scale = min(enlarging) if enlarging else max(scale for scale, _, _ in scales)
    return min(
        ((rows, columns) for scale, rows, columns in scales if scale == best_scale), key=lambda grid: grid[0] * grid[1]
    )
