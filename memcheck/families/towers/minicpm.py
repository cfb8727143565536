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
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import add, copy, index, operator, slices, unary
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    SIGLIP,
    Limits,
    ProcessedPicture,
    TowerForward,
    no_clips,
    no_limits,
    norm_pair,
    patch_convolution_tensors,
    read_layer_sizes,
    read_pixels,
    refuse_dropout,
    tower_layer,
    tower_mlp,
    two_matrices,
)
from memcheck.families.towers.attention import attention_per_picture, projections, tower_attention
from memcheck.families.towers.forward_parts import (
    cat_image_tokens,
    last_hidden_state,
    layer_norm,
    linear_layer,
    patch_convolution,
    require_input_grads,
)
from memcheck.families.towers.siglip import SIGLIP_LAYERS, SIGLIP_PIXELS
from memcheck.models.decoder import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Between, TowerAttention, Vision

MODES = ("16x", "4x")
"""Patches that become one image token: with the merger between the layers, and without it."""
WINDOW = 2
"""Patches of a window's side, and of what the projector merges."""
IDS = ("image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: minicpmv4_6`` and ``minicpmv4_7``."""
    return _tower(config, model, "16x")


def read_ocr(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: minicpm_ocr``: four times as many image tokens by default."""
    return _tower(config, model, "4x")


def _tower(config: ConfigReader, model: TowerContext, default_mode: str) -> Vision:
    """Read SigLIP's layers, and the merger of 2 x 2 windows after layer ``insert_layer_id``.

    ``default_mode``: ``16x`` or ``4x``, the patches of an image token where ``downsample_mode`` is not stated.
    """
    outer, outputs = model.outer, model.language.hidden_size
    mode = outer.text("downsample_mode", default=default_mode)
    if mode not in MODES:
        outer.fail("downsample_mode", f"downsample_mode is {' or '.join(MODES)}")
    _refuse_unmodelled(config, outer)
    size, pixels = read_layer_sizes(config, SIGLIP_LAYERS), read_pixels(config, SIGLIP_PIXELS)
    width, depth = size.width, size.depth
    insert_layer_id = outer.integer("insert_layer_id", default=6)
    activation = config.activation(default="gelu_pytorch_tanh")
    layer = tower_layer(width, size.heads, tower_mlp(width, size.inner, activation, SIGLIP.mlp), "minicpm:unrotated")
    merger, patches_per_window = _merger(width, size.inner), WINDOW * WINDOW
    has_merger = mode == "16x"
    if has_merger and not 0 <= insert_layer_id < depth - 1:
        outer.fail("insert_layer_id", f"insert_layer_id is between 0 and {depth - 2}, of {depth} layers")
    merged_width = width * patches_per_window
    layers_after = depth - insert_layer_id - 1
    return Vision(
        kind="minicpm:minicpm",
        hidden=width,
        blocks=((layer, insert_layer_id + 1), (layer, layers_after)) if has_merger else ((layer, depth),),
        values_per_patch=pixels.channels,
        patches_per_token=patches_per_window * patches_per_window if has_merger else patches_per_window,
        token_width=outputs,
        stem_tensors=(
            *patch_convolution_tensors("embeddings.patch_embedding", width, pixels),
            ParameterTensor("embeddings.position_embedding.weight", (pixels.patches, width), "position"),
        ),
        middle=Between(merger, patches_per_window) if has_merger else None,
        unused_tensors=() if has_merger else merger,
        closing_tensors=norm_pair("post_layernorm", width),
        projector_tensors=(
            *norm_pair("mlp.0.pre_norm", merged_width),
            *two_matrices(("mlp.0.linear_1", "mlp.0.linear_2"), merged_width, merged_width, outputs),
        ),
        embedding_can_be_hooked=True,
        returns_image_tokens=False,
        patch_side=pixels.patch_side,
        processor="minicpm:process",
        separator_tokens=2,
        heads=size.heads,
        activation=activation,
        path="vision_tower",
        projector_path="merger",
    )


def _refuse_unmodelled(config: ConfigReader, outer: ConfigReader) -> None:
    """Fail if the tower (``config``) or the configuration around it has an option without a memory model."""
    outer.expect("merger_times", 1, "a merger of several rounds has no memory model", "it is 1 in released files")
    for reader, key in ((outer, "merge_kernel_size"), (config, "window_kernel_size")):
        if tuple(reader.integers(key) or (WINDOW, WINDOW)) != (WINDOW, WINDOW):
            reader.fail(key, "windows of other sides than 2 have no memory model")
    refuse_dropout(config, "attention_dropout")
    outer.ignore("drop_vision_last_layer", "image_size", "patch_size", *IDS)  # which its class does not read
    config.ignore("insert_layer_id", "layer_norm_eps", "initializer_range", "model_type")


def _merger(width: int, inner: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of ``vit_merger``: attention in windows of four patches, and an MLP that makes one row of each
    window.
    """
    name, patches_per_window = "vit_merger.", WINDOW * WINDOW
    attention: tuple[ParameterTensor, ...] = ()
    for matrix in ("q_proj", "k_proj", "v_proj", "out_proj"):
        attention += linear(f"{name}self_attn.{matrix}", width, width, "attention", "none", bias=True)
    return (
        *attention,
        *norm_pair(name + "layer_norm1", width),
        *norm_pair(name + "pre_norm", width * patches_per_window),
        *linear(name + "linear_1", inner * patches_per_window, width * patches_per_window, "mlp", "none", bias=True),
        *linear(name + "linear_2", width, inner * patches_per_window, "mlp", "none", bias=True),
    )


MERGED_WINDOW = 4
"""Patches that become one between the layers, and again in the projector."""


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings``: patches, and the position that is nearest to each. The hook is on ``patch_embedding``.

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    weight, bias, table = vision.stem_tensors
    x, live = require_input_grads(
        patch_convolution(ctx, vision, ctx.tokens, weight, bias, outside=True), require_grad=require_grad
    )
    return add(ctx.tape, x, _positions(ctx, table), "add positions"), live


def _positions(ctx: Context, table: ParameterTensor) -> Value:
    """Compute ``position_embedding(pos_ids)``: [patches, hidden]. Saves the positions, int64."""
    tape, rows = ctx.tape, ctx.tokens
    parameter = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    out = tape.value((rows, table.shape[1]), parameter.dtype, "positions")
    position_ids = tape.new((rows,), "int64", "places")
    return operator(
        tape,
        out,
        tape.parameter(parameter),
        (table.shape, parameter.dtype, "embedding backward"),
        saves=(position_ids,),
    )


def between(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``vit_merger``: attention in windows of four patches, then their mean plus an MLP of all four.

    ``x``: [patches, hidden]; the result has a quarter of the rows.
    """
    tape, shape = ctx.tape, x.shape
    merger = vision.middle_tensors
    matrices = [t for t in merger if t.linear]
    order = tape.new((shape[0],), "int64", "places of windows")
    hidden_states = layer_norm(ctx, x, _norm_tensors(merger, "layer_norm1"))
    hidden_states = index(tape, hidden_states, order, shape)
    mixer = vision.blocks[0][0].mixer
    if isinstance(mixer, TowerAttention):
        tensors = tuple(t for t in merger if ".self_attn." in t.name)
        hidden_states = tower_attention(ctx, mixer._replace(tensors=tensors, window=MERGED_WINDOW), hidden_states)
    merged = add(tape, index(tape, x, order, shape), hidden_states, "residual")
    del hidden_states
    mean = _mean(ctx, merged)
    flat = layer_norm(
        ctx, merged.view(shape[0] // MERGED_WINDOW, shape[1] * MERGED_WINDOW), _norm_tensors(merger, "pre_norm")
    )
    inner = linear_layer(ctx, flat, matrices[-2], bias=True)
    del flat
    activated = unary(tape, inner, "gelu_pytorch_tanh")
    del inner
    out = linear_layer(ctx, activated, matrices[-1], bias=True)
    del activated
    return add(tape, out, mean, "mean of a window")


def _norm_tensors(tensors: tuple[ParameterTensor, ...], name: str) -> tuple[ParameterTensor, ...]:
    """The weight and bias of the merger's norm ``name``."""
    return tuple(t for t in tensors if f".{name}." in t.name)


def _mean(ctx: Context, x: Value) -> Value:
    """Compute the mean of each window's four patches. Saves nothing; backward divides an expanded gradient."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    return operator(
        tape, tape.value((shape[0] // MERGED_WINDOW, shape[1]), dtype, "mean of windows"), x, "mean backward"
    )


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm`` and ``merger``: four patches become one image token of the text width.

    Each picture is a slice of the rows; a copy puts its four patches side by side.
    """
    tape = ctx.tape
    x = last_hidden_state(ctx, vision, x)
    x = slices(tape, x, x.shape)[0]
    x = copy(tape, x, "merge patches").view(x.shape[0] // MERGED_WINDOW, x.shape[1] * MERGED_WINDOW)
    x = layer_norm(ctx, x, vision.projector_tensors[:2])
    first, second = (t for t in vision.projector_tensors if t.linear)
    inner = linear_layer(ctx, x, first, bias=True)
    del x
    activated = activation(tape, inner, "gelu")
    del inner
    return cat_image_tokens(ctx, linear_layer(ctx, activated, second, bias=True))


RESOLUTION, SLICES = 448, 9
"""Pixels to whose square a slice is scaled, and the most slices of a picture."""
DEFAULT_PROCESSOR = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"
IMAGE_ID_SEPARATORS = 3
"""Tokens in front of a picture that say its number."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens of a picture: the whole picture scaled down, and the slices of a large one.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    factor = vision.patch_side * math.isqrt(vision.patches_per_token)
    grid = _slice_grid(height, width)
    overview = _patch_count(vision, _best_resize(height, width, factor, grows=grid == (1, 1)))
    sizes: tuple[int, ...] = (overview,)
    if grid != (1, 1):
        rows, columns = grid
        slice_size = _nearest_multiple(height, rows) / rows, _nearest_multiple(width, columns) / columns
        sizes += rows * columns * (_patch_count(vision, _best_resize(*slice_size, factor, grows=True)),)
    patches = sum(sizes)
    return ProcessedPicture(
        pictures=len(sizes),
        patches=patches,
        image_tokens=patches // vision.patches_per_token,
        separator_tokens=IMAGE_ID_SEPARATORS + 2 * len(sizes) + grid[0] - 1,
        defaults=(("max_slices", SLICES, DEFAULT_PROCESSOR),),
        patches_by_picture=sizes,
    )


def _patch_count(vision: Vision, sides: tuple[int, int]) -> int:
    """Patches of a picture of ``sides``: height and width in pixels."""
    return (sides[0] // vision.patch_side) * (sides[1] // vision.patch_side)


def _nearest_multiple(length: float, divisor: int) -> int:
    """The multiple of ``divisor`` nearest to ``length`` pixels, at least one."""
    return max(round(length / divisor) * divisor, divisor)


def _best_resize(height: float, width: float, factor: int, *, grows: bool) -> tuple[int, int]:
    """Return height and width in pixels after ``find_best_resize``: about 448 x 448, in multiples of ``factor``.

    ``grows``: a picture with fewer pixels is enlarged, too.
    """
    if grows or height * width > RESOLUTION * RESOLUTION:
        ratio = width / height
        height = int(RESOLUTION / math.sqrt(ratio))
        width = int(height * ratio)
    return _nearest_multiple(height, factor), _nearest_multiple(width, factor)


def _slice_grid(height: int, width: int) -> tuple[int, int]:
    """Return rows and columns of the grid into which a picture is cut (``get_sliced_grid``).

    It has about one slice per 448 x 448 pixels; of such grids the one closest to the picture's aspect ratio is taken.
    """
    wanted = min(math.ceil(width * height / (RESOLUTION * RESOLUTION)), SLICES)
    best, smallest_difference = (1, 1), math.inf
    if wanted <= 1:
        return best
    for count in (wanted - 1, wanted, wanted + 1):
        if count == 1 or count > SLICES:
            continue
        for rows in (n for n in range(1, count + 1) if count % n == 0):
            difference = abs(math.log(width / height) - math.log(count // rows / rows))
            if difference < smallest_difference or (difference == smallest_difference and rows > best[0]):
                best, smallest_difference = (rows, count // rows), difference
    return best


def unrotated(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute attention with a matrix each for q, k and v, and no rotary embedding."""
    q, k, v = projections(ctx, attention, x)
    del x
    return attention_per_picture(ctx, attention, q, k, v)


FORWARDS = {
    "minicpm": TowerForward(stem, project, middle=between),
}
"""By name, the forward passes of a kind of tower."""
