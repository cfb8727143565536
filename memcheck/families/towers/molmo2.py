"""Molmo 2 on pictures: SigLIP's layers, rows of two pooled by attention, a gated network (modeling_molmo2.py).

Molmo 2: patches through a matrix, rows of two layers, of which attention pools four each (modeling_molmo2.py).

Molmo 2: squares that overlap on a canvas of a picture's shape, and the whole in one (image_processing_molmo2.py).
"""

from __future__ import annotations

import math

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.eager import EagerSteps, eager
from memcheck.autograd.kernels import MASK_ALIGNMENT
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import cast, copy, index, mul, operator
from memcheck.autograd.tensor import Value, ceil_div, round_up
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    SIGLIP,
    LayerNames,
    Limits,
    Pixels,
    ProcessedPicture,
    TowerForward,
    no_clips,
    no_limits,
    require_divisible_heads,
    square_side,
    tower_layer,
    tower_mlp,
)
from memcheck.families.towers.forward_parts import add_position_embedding, linear_layer, require_input_grads
from memcheck.models.decoder import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision

NAMES = LayerNames(output="self_attn.o_proj", norms=SIGLIP.norms, mlp=SIGLIP.mlp)
IDLE = (
    "attn_implementation", "float32_attention", "residual_dropout", "image_feature_dropout", "pooling_attention_mask",
)  # fmt: skip
"""Keys of released files that transformers' class does not read."""
POOLED = 4
"""Patches that become one image token."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: molmo2``. Clips have no memory model."""
    outer, outputs = model.outer, model.language.hidden_size
    outer.ignore("initializer_range", "image_patch_id", "image_start_token_id", "low_res_image_start_token_id")
    outer.ignore("image_high_res_id", "use_frame_special_tokens", "use_cache")
    outer.ignore("image_end_token_id", "frame_start_token_id", "frame_end_token_id", "image_low_res_id", "image_col_id")
    width, heads = _attention(config)
    inner = config.integer("intermediate_size", default=4304)
    depth = config.integer("num_hidden_layers", default=25, maximum=MAX_LAYERS)
    pixels = _pixels(config)
    mlp = tower_mlp(width, inner, config.activation(default="gelu_pytorch_tanh"), NAMES.mlp)
    block = tower_layer(width, heads, mlp, "separate", NAMES)
    adapter = outer.section("adapter_config")
    feature_layers = _feature_layers(adapter, depth)
    last_used = feature_layers[-1]
    pooled_width, pooling_heads = _attention(adapter)
    if pooled_width != width:
        adapter.fail("hidden_size", f"{pooled_width} is not the tower's width {width}")
    projector = _projector(adapter, width, width * len(feature_layers), outputs)
    return Vision(
        kind="molmo2:molmo2",
        hidden=width,
        blocks=((block, last_used),),
        idle_blocks=((block, depth - last_used),) if last_used < depth else (),
        values_per_patch=pixels.channels,
        patches_per_token=POOLED,
        token_width=outputs,
        stem_tensors=(
            ParameterTensor("positional_embedding", (pixels.patches, width), "position"),
            *linear("patch_embedding", width, pixels.channels, "vision", "none", bias=True),
        ),
        projector_tensors=projector,
        embedding_can_be_hooked=False,
        feature_layers=feature_layers[:-1],
        perceiver=Perceiver(
            latents=1,
            heads=pooling_heads,
            kv_heads=pooling_heads,
            head_dim=width // pooling_heads,
            activation=adapter.activation(default="silu"),
        ),
        placement="added",
        rows_per_tile=pixels.patches,
        tokens_per_tile=ceil_div(pixels.side_pixels // pixels.patch_side, 2) ** 2,
        patch_side=pixels.patch_side,
        processor="molmo2:process",
        separator_tokens=4,
        heads=heads,
        path="vision_tower",
        projector_path="multi_modal_projector",
    )


def _pixels(config: ConfigReader) -> Pixels:
    """Read the side of a square and of a patch, for which released files have names of their own, in pixels."""
    side_key = "image_default_input_size" if config.has("image_default_input_size") else "image_size"
    patch_key = "image_patch_size" if config.has("image_patch_size") else "patch_size"
    side, patch = square_side(config, side_key, 378), square_side(config, patch_key, 14)
    pixels = Pixels(config.integer("num_channels", default=3), side, patch)
    if config.integer("num_position_embeddings", "image_num_pos", default=pixels.patches) != pixels.patches:
        config.fail("num_position_embeddings", f"a square of {side} pixels has {pixels.patches} patches")
    config.ignore("image_size", "patch_size", "image_default_input_size", "image_patch_size", *IDLE)
    config.ignore("model_type", "layer_norm_eps", "initializer_range")
    return pixels


def _feature_layers(adapter: ConfigReader, depth: int) -> tuple[int, ...]:
    """Read how many of the tower's ``depth`` layers run before each set of rows that is pooled, in rising order."""
    layers_key = "vit_layers" if adapter.has("vit_layers") else "vision_feature_layer"
    indexes = adapter.integers(layers_key) or (24, 18)
    adapter.ignore("vit_layers", "vision_feature_layer", *IDLE)
    layers = sorted(i + 1 if i >= 0 else depth + 1 + i for i in indexes)
    if not all(0 < i <= depth for i in layers) or len(set(layers)) != len(layers):
        adapter.fail("vision_feature_layer", f"the tower of {depth} layers has no rows of layers {list(indexes)}")
    return tuple(layers)


def _projector(adapter: ConfigReader, width: int, features: int, outputs: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of the pooling attention, and of the gated network after it.

    ``features``: elements of what is pooled, the rows of several layers side by side. ``outputs``: of an image token.
    """
    inner = adapter.integer("intermediate_size", default=18944)
    if adapter.integer("text_hidden_size", default=3584) != outputs:
        adapter.fail("text_hidden_size", f"it is not the language model's width {outputs}")
    adapter.refuse("mlp_bias", "mlp_bias: true has no memory model", "it is false in released files")
    adapter.ignore("model_type", "initializer_range")
    tensors: tuple[ParameterTensor, ...] = ()
    for name, inputs in (("q_proj", features), ("k_proj", features), ("v_proj", features), ("o_proj", width)):
        tensors += linear(f"image_pooling_2d.{name}", width, inputs, "projector", "none", bias=True)
    for name in ("gate_proj", "up_proj"):
        tensors += linear(f"image_projector.{name}", inner, width, "projector", "none")
    return tensors + linear("image_projector.down_proj", outputs, inner, "projector", "none")


def _attention(config: ConfigReader) -> tuple[int, int]:
    """Read the width and the number of heads of an attention module, whose heads all have their own keys and values."""
    width, heads = config.integer("hidden_size", default=1152), config.integer("num_attention_heads", default=16)
    require_divisible_heads(config, width, heads)
    config.expect("num_key_value_heads", heads, "fewer heads of keys and values have no memory model here")
    if config.integer("head_dim", default=width // heads) * heads != width:
        config.fail("head_dim", f"{heads} heads do not make the width {width}")
    if not config.flag("attention_bias", default=True):
        config.fail("attention_bias", "attention_bias: false has no memory model here", "it is true in released files")
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "a dropout in a vision tower has no memory model", "it is 0 in released files")
    return width, heads


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embedding`` (a matrix) and add ``positional_embedding``: [patches, hidden].

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    table, weight, _ = vision.stem_tensors
    weights = ctx.weights(weight, bias=True)
    dtype = weights.weight.dtype
    pixels = ctx.tape.value((ctx.tokens, vision.values_per_patch), dtype, "pixel_values")
    x = kernels.linear(ctx.tape, pixels, weights, weight.name)
    del pixels
    return require_input_grads(add_position_embedding(ctx, x, table, looked_up=False), require_grad=require_grad)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``image_pooling_2d`` and ``image_projector``: one query pools four patches, followed by a gated MLP.

    ``x``: the last used layer's rows [patches, hidden], which earlier layers' rows are concatenated with.
    """
    tape, perceiver = ctx.tape, vision.perceiver
    tokens = ctx.setting.image_tokens or x.shape[0] // vision.patches_per_token
    shape, dtype, count = x.shape, x.dtype, 1 + len(vision.feature_layers)
    joined = tape.value((shape[0], count * shape[1]), dtype, "cat layers")
    joined = operator(tape, joined, x, "narrow")
    if perceiver is None:
        return joined
    query, key, value, output, gate, up, down = (t for t in vision.projector_tensors if t.linear)
    del x
    pooled_indexes = tape.new((tokens * vision.patches_per_token,), "int64", "pooled patches")
    patches = index(
        tape, joined, pooled_indexes, (tokens * vision.patches_per_token, joined.shape[1]), "patches to pool"
    )
    patches = _mask_invalid(ctx, patches)
    summed = _mean_of_patches(ctx, patches, tokens)
    q = linear_layer(ctx, summed, query, bias=True)
    del summed
    k, v = linear_layer(ctx, patches, key, bias=True), linear_layer(ctx, patches, value, bias=True)
    del patches
    pooled = linear_layer(ctx, _pooling_attention(ctx, perceiver, q, k, v), output, bias=True)
    del q, k, v
    gated = activation(tape, linear_layer(ctx, pooled, gate), perceiver.activation)
    up_output = linear_layer(ctx, pooled, up)
    del pooled
    image_tokens = linear_layer(ctx, mul(tape, gated, up_output), down)
    del gated, up_output
    picked = index(
        tape, image_tokens, tape.new((tokens,), "int64", "tokens with patches"), image_tokens.shape, "pooled_features"
    )
    del image_tokens
    del joined  # `image_features`, a variable of `get_image_features`
    out = copy(tape, picked, "cat image tokens")
    ctx.extra_outputs += [picked, out]
    return out


def _mask_invalid(ctx: Context, x: Value) -> Value:
    """Compute ``patches * valid``. Saves the mask [patches]."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    mask = tape.new(shape[:1], dtype, "valid patches")
    return operator(tape, tape.value(shape, dtype, "masked patches"), x, "mul backward", saves=(mask,))


def _mean_of_patches(ctx: Context, x: Value, tokens: int) -> Value:
    """Compute ``patches.sum(-2) / valid``: the mean of the patches of each token; its gradient is expanded without
    memory.
    """
    tape, dtype, input_shape = ctx.tape, x.dtype, x.shape
    output_shape = (tokens, input_shape[1])
    total = tape.value(output_shape, dtype, "sum of patches")
    out = tape.value(output_shape, dtype, "mean of patches")
    del total
    return operator(tape, out, x, "expanded gradient")


def _pooling_attention(ctx: Context, perceiver: Perceiver, q: Value, k: Value, v: Value) -> Value:
    """Compute attention of one query per image token over its patches, under a mask of valid ones."""
    tape, shape = ctx.tape, q.shape
    tokens, patches_per_token = shape[0], k.shape[0] // shape[0]
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    q = q.view(tokens, perceiver.heads, 1, perceiver.head_dim)
    k, v = (t.view(tokens, perceiver.heads, patches_per_token, perceiver.head_dim) for t in (k, v))
    if ctx.setting.attention == "eager":
        return copy(tape, eager(tape, q, k, v, EagerSteps(ctx.setting.param_dtype)), "contiguous").view(*shape)
    aligned = round_up(patches_per_token, MASK_ALIGNMENT)
    allows_flash = ctx.setting.attention in ("flash", "flex")
    mask = None if allows_flash else tape.new((tokens, 1, 1, aligned), q.dtype, "attention mask")
    label = "flash attention" if allows_flash else "efficient attention"
    return kernels.flash(tape, q, k, v, perceiver.head_dim, label=label, extra=mask).view(*shape)


MAX_TILES, OVERLAP_PATCHES = 8, 8
"""Squares of a picture at most, and patches of each side that its neighbours have, too."""
PROCESSOR_DEFAULT = "the processor's default; the model's own preprocessor_config.json may say another"


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count squares, patches and image tokens: overlapping squares on a canvas, and the whole picture in one more.

    An image token pools 2 x 2 patches of the overview or of the canvas.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    patches_per_side = math.isqrt(vision.rows_per_tile)
    window, margin = (patches_per_side - OVERLAP_PATCHES) * vision.patch_side, OVERLAP_PATCHES * vision.patch_side
    rows, columns = _tiling(height - margin, width - margin, window)
    token_rows, token_columns = (
        ceil_div(n * (patches_per_side - OVERLAP_PATCHES) + OVERLAP_PATCHES, 2) for n in (rows, columns)
    )
    squares = rows * columns + 1
    tokens = vision.tokens_per_tile + token_rows * token_columns
    return ProcessedPicture(
        pictures=squares,
        patches=squares * vision.rows_per_tile,
        image_tokens=tokens,
        separator_tokens=vision.separator_tokens,
        defaults=(("max_tiles", MAX_TILES, PROCESSOR_DEFAULT),),
    )


def _tiling(height: int, width: int, tile_side: int) -> tuple[int, int]:
    """Return rows and columns of squares (``select_tiling``).

    The smallest enlargement of the picture wins; if all grids reduce it, the mildest reduction. ``height``, ``width``,
    ``tile_side``: in pixels.
    """
    grids = [
        (down, across)
        for down in range(1, MAX_TILES + 1)
        for across in range(1, MAX_TILES + 1)
        if down * across <= MAX_TILES
    ]
    grids.sort(key=lambda grid: (grid[0] * grid[1], grid[0]))
    scales = [min(_scale(down * tile_side, height), _scale(across * tile_side, width)) for down, across in grids]
    enlarging = [scale for scale in scales if scale >= 1]
    return grids[scales.index(min(enlarging) if enlarging else max(scales))]


def _scale(size: int, original: int) -> float:
    """Factor from ``original`` to ``size`` pixels; infinite for an empty picture."""
    return size / original if original else math.inf


FORWARDS = {
    "molmo2": TowerForward(stem, project),
}
"""By name, the forward passes of a kind of tower."""
