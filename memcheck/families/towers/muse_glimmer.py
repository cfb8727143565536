"""Muse Glimmer: Kimi's layers on windows of rows of all pictures, merged by fours (modeling_muse_glimmer.py).

Muse Glimmer's tower: patches multiplied by a matrix, rows in the order of their windows, narrow rotary tables.

modeling_muse_glimmer.py of transformers 5.23: MuseGlimmerVisionModel.forward, MuseGlimmerModel.get_image_features.

Muse Glimmer's processor: the grid of image tokens nearest to a picture's shape, and no more of them than a limit.

image_processing_muse_glimmer.py of transformers 5.23 (``smart_resize``).
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import rotate_half
from memcheck.autograd.modules import activation, rms_norm_pieces
from memcheck.autograd.operator import add, cast, copy, index
from memcheck.autograd.tensor import Storage, Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    LayerNames,
    LayerSizes,
    Limits,
    ProcessedPicture,
    TowerForward,
    no_clips,
    no_limits,
    norm_pair,
    read_layer_sizes,
    tower_layer,
    tower_mlp,
)
from memcheck.families.towers.attention import attention_per_picture, projections
from memcheck.families.towers.forward_parts import (
    cat_image_tokens,
    flat_pixel_values,
    keep_in_variable,
    layer_norm,
    linear_layer,
)
from memcheck.families.towers.qwen import interpolated_positions
from memcheck.models.decoder import layer_types, linear, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

NAMES = LayerNames(
    queries="attn.q_proj", keys="attn.k_proj", values="attn.v_proj", output="attn.proj", norms=("norm1", "norm2")
)
FULL, WINDOWED, PERIOD = "full_attention", "window_attention", 4


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: muse_glimmer``: a tower with windowed attention, and an adapter that merges
    patches by pixel shuffle.
    """
    outer, outputs = model.outer, model.language.hidden_size
    size = read_layer_sizes(config, LayerSizes(width=1536, heads=16, inner=8960, depth=50))
    width = size.width
    patch, frames = config.integer("patch_size", default=14), config.integer("patch_temporal", default=2)
    grid_rows = config.integer("pos_emb_height", default=32)
    merge = config.integer("merge_size", default=2) ** 2
    config.ignore("model_type", "rope_parameters", "initializer_range", "layer_norm_eps", "max_position_embeddings")
    merged_width = width * merge
    if outer.integer("out_hidden_size", default=6144) != merged_width:
        outer.fail("out_hidden_size", f"out_hidden_size is not {merged_width}, the width of {merge} merged rows")
    inner, channels = outer.integer("projector_hidden_size", default=4096), 3 * frames * patch * patch
    return Vision(
        kind="muse_glimmer:muse_glimmer",
        hidden=width,
        blocks=_layers(config, size, grid_rows * grid_rows),
        values_per_patch=channels,
        patches_per_token=merge,
        token_width=outputs,
        stem_tensors=(
            *linear("patch_embedder.patch_embedding", width, channels, "vision", "none"),
            ParameterTensor(
                "patch_embedder.position_embedding_table.weight",
                (grid_rows * config.integer("pos_emb_width", default=32), width),
                "position",
            ),
            *norm_pair("ln_pre", width),
        ),
        projector_tensors=(
            *linear("vision_adapter.fc1", inner, merged_width, "projector", "none"),
            *linear("vision_adapter.fc2", inner, inner, "projector", "none"),
            *linear("vision_projection", outputs, inner, "projector", "none"),
        ),
        embedding_can_be_hooked=False,
        closing_tensors=norm_pair("ln_post", width),
        patch_side=patch,
        processor="muse_glimmer:process",
        separator_tokens=2,
        returns_image_tokens=False,
        heads=size.heads,
        activation=outer.activation("projector_hidden_act", default="gelu"),
        path="vision_tower",
        layers_path="layers",
        projector_path="",
    )


def _layers(config: ConfigReader, size: LayerSizes, window: int) -> tuple[tuple[Block, int], ...]:
    """Build the layers as runs of (layer, how many): every fourth, and the last, has full attention by default.

    ``window``: rows that attend to each other in the other layers.
    """
    mlp = tower_mlp(size.width, size.inner, config.activation(default="gelu"), NAMES.mlp)
    block = tower_layer(size.width, size.heads, mlp, "muse_glimmer:packed_tables", NAMES)

    def default_type(i: int) -> str:
        """Return the default attention type of layer ``i``."""
        return WINDOWED if (i + 1) % PERIOD and i + 1 < size.depth else FULL

    def build_layer(kind: str) -> Block:
        """Build one layer. ``kind``: full or windowed attention."""
        if kind == FULL or not isinstance(block.mixer, TowerAttention):
            return block
        return block._replace(mixer=block.mixer._replace(window=window))

    return stack(layer_types(config, size.depth, default_type, (FULL, WINDOWED)), build_layer)


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Embed patches, add interpolated positions, normalise, and order the rows by ``window_index``.

    Also returns the rotary tables. No hook finds the patches, so ``require_grad`` has no effect.
    """
    tape = ctx.tape
    weight, table, *norm = vision.stem_tensors
    x = linear_layer(ctx, flat_pixel_values(ctx, vision), weight)
    x = add(tape, x, cast(tape, interpolated_positions(ctx, table), x.dtype), "add positions")
    x = layer_norm(ctx, x, tuple(norm))
    order = tape.new((ctx.tokens,), "int64", "window index")
    x = index(tape, x, order, x.shape, "window order")
    shape = (ctx.tokens, vision.hidden // vision.heads)
    return x, [tape.value(shape, x.dtype, "rotary table") for _ in range(2)]


def packed_tables(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Rotate queries and keys on fp32 copies, with fp32 copies of the tables, and compute attention per picture.

    Each layer makes the copies. Queries and keys before the rotation are variables of the module until it returns
    (``apply_rotary_pos_emb_vision``).
    """
    tape = ctx.tape
    q, k, v = projections(ctx, attention, x)
    del x
    narrow = q, k
    tables: tuple[Storage, ...] = ()
    q, k = (cast(tape, states, "fp32") for states in narrow)
    if ctx.setting.param_dtype != "fp32":
        tables = tuple(tape.new((ctx.tokens, attention.head_dim), "fp32", "rotary table in fp32") for _ in range(2))
    rotated = rotate_half(tape, q, "fp32", tables), rotate_half(tape, k, "fp32", tables)
    q = cast(tape, rotated[0], narrow[0].dtype)
    k = cast(tape, rotated[1], narrow[1].dtype)
    del narrow, rotated, tables
    return attention_per_picture(ctx, attention, q, k, v)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Restore the pictures' order, then compute ``ln_post``, ``pixel_shuffle``, the adapter, a matrix and a norm.

    Returns image tokens [patches / merge, text hidden].
    """
    tape, shape = ctx.tape, x.shape
    x = index(tape, x, tape.new(shape[:1], "int64", "reverse index"), shape, "picture order")
    x = layer_norm(ctx, x, vision.closing_tensors)
    x = index(tape, x, tape.new(shape[:1], "int64", "shuffle index"), shape, "pixel shuffle")
    x = copy(tape, x, "pixel shuffle").view(shape[0] // vision.patches_per_token, shape[1] * vision.patches_per_token)
    keep_in_variable(ctx, x)  # `last_hidden_state`
    *adapter, last = vision.projector_tensors
    for tensor in adapter:
        x = activation(tape, linear_layer(ctx, x, tensor), vision.activation)
    x = linear_layer(ctx, x, last)
    return cat_image_tokens(ctx, rms_norm_pieces(tape, x, None))


MOST = 4096
WHY = "the processor's default; the model's own preprocessor_config.json may say another"


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens of a picture; one separator token precedes the image tokens, and one
    follows them.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    rows, columns = grid(height, width, vision.patch_side * math.isqrt(vision.patches_per_token))
    return ProcessedPicture(
        pictures=1,
        patches=rows * columns * vision.patches_per_token,
        image_tokens=rows * columns,
        separator_tokens=2,
        defaults=(("max_image_tokens", MOST, WHY),),
    )


def grid(height: int, width: int, side: int) -> tuple[int, int]:
    """Return rows and columns of squares of ``side`` pixels, at most :data:`MOST` in total.

    Each is rounded up or down; of the candidates, the one nearest to the picture's aspect ratio is taken.
    """
    exact_rows, exact_columns = height / side, width / side
    ratio = exact_columns / exact_rows
    if exact_rows * exact_columns > MOST:
        exact_rows = (MOST / ratio) ** 0.5
        exact_columns = exact_rows * ratio
    # a set, as upstream: its order decides between two equally near candidates
    candidates = {
        (rows, columns)
        for rows in (math.floor(exact_rows), math.ceil(exact_rows))
        for columns in (math.floor(exact_columns), math.ceil(exact_columns))
    }
    fitting = [(rows, columns) for rows, columns in candidates if rows >= 1 and columns >= 1 and rows * columns <= MOST]
    if not fitting:
        fitting = [(max(1, round(exact_rows)), max(1, round(exact_columns)))]
    return min(fitting, key=lambda candidate: abs(candidate[0] / candidate[1] - height / width))


FORWARDS = {
    "muse_glimmer": TowerForward(stem, project, runs_layers_itself=True),
}
"""By name, the forward passes of a kind of tower."""
