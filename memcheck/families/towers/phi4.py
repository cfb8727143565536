"""The conformer of Phi-4-multimodal and what projects its rows, which are idle in steps without sounds.

modeling_phi4_multimodal.py of transformers 5.23, Phi4MultimodalAudioEmbedding.

Phi-4-multimodal on pictures: SigLIP under padding masks, rows pooled by fours; the audio tower is idle.

modeling_phi4_multimodal.py of transformers 5.23.

Phi-4-multimodal: SigLIP's rows of a layer before the last, pooled by fours, a token after each row of squares.

modeling_phi4_multimodal.py of transformers 5.23: Phi4MultimodalVisionEmbeddings, Phi4MultimodalImageEmbedding.

Phi-4-multimodal: squares that cover a picture in its own size, and the whole in one (``dynamic_hd``).

image_processing_phi4_multimodal.py of transformers 5.23.
"""

from __future__ import annotations

import math
from math import isqrt

from memcheck.autograd.context import Context
from memcheck.autograd.operator import copy, gradient_copied, operator
from memcheck.autograd.tensor import Value, ceil_div
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    LayerSizes,
    Limits,
    PictureError,
    Pixels,
    ProcessedPicture,
    TowerForward,
    idle_layer,
    no_clips,
    no_limits,
    norm_pair,
    two_matrices,
)
from memcheck.families.towers.attention import masked_attention
from memcheck.families.towers.forward_parts import (
    attention_pooling_head,
    average_pool,
    patch_convolution,
    prepend_class_token,
    projector_mlp,
    require_input_grads,
)
from memcheck.families.towers.idefics2 import add_position_per_patch
from memcheck.families.towers.processors import closest_aspect_ratio_grid
from memcheck.families.towers.siglip import pooling_head, siglip, with_padding_mask
from memcheck.models.decoder import linear, vector
from memcheck.models.module_types import CopiedGradientMlp
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Mlp, ParameterTensor
from memcheck.models.vision import OtherTower, TowerAttention, Vision


def read_audio(config: ConfigReader, outputs: int) -> OtherTower:
    """Read every tensor of ``embed_tokens_extend.audio_embed``, which is idle in steps without sounds."""
    width = config.integer("hidden_size", default=1024)
    inner = config.integer("intermediate_size", default=1536)
    layers = config.integer("num_blocks", default=24, maximum=MAX_LAYERS)
    heads = config.integer("num_attention_heads", default=16)
    channels, mel_bins = config.integer("nemo_conv_channels", default=1024), config.integer("input_size", default=80)
    reduction = config.integer("time_reduction", default=8)
    distance = config.integer("bias_max_distance", default=1000)
    buckets = distance if config.flag("bias_symmetric") else 2 * distance
    stacked_width = config.integer("downsample_rate", default=1) * width
    config.ignore(
        "model_type", "activation", "chunk_size", "left_chunk", "dropout_rate", "conv_activation", "conv_glu_type",
        "nemo_activation", "initializer_range", "audio_token_id", "feature_layer", "nemo_final_size",
    )  # fmt: skip
    halvings = reduction.bit_length() - 1
    for _ in range(halvings):
        mel_bins = (mel_bins - 1) // 2 + 1
    tensors = _conv("encoder.embed.conv.0", channels, 1, 3, 3)
    for i in range(halvings - 1):
        tensors += _conv(f"encoder.embed.conv.{2 + 3 * i}", channels, 1, 3, 3)  # a group each channel
        tensors += _conv(f"encoder.embed.conv.{3 + 3 * i}", channels, channels, 1, 1)
    tensors += linear("encoder.embed.out", width, channels * mel_bins, "audio", "none", bias=True)
    table = "encoder.relative_attention_bias_layer.bias_values.weight"
    tensors += (ParameterTensor(table, (buckets, heads), "audio"),)
    for kind in ("speech", "vision_speech"):
        tensors += linear(f"up_proj_for_{kind}", outputs, stacked_width, "audio", "none", bias=True)
        tensors += linear(f"down_proj_for_{kind}", outputs, outputs, "audio", "none", bias=True)
    return OtherTower(
        part="audio",
        path="model.embed_tokens_extend.audio_embed.",
        layers_path="encoder.encoders",
        blocks=((idle_layer(_conformer_tensors(config, width, inner)), layers),),
        tensors=tensors,
    )


def _conformer_tensors(config: ConfigReader, width: int, inner: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of Phi4MultimodalAudioConformerEncoderLayer: half a feed-forward, attention, convolutions, the
    other half.
    """
    kernel = config.integer("kernel_size", default=3)
    expanded_channels = config.integer("ext_pw_out_channel", default=1024)
    depthwise_channels = config.integer("depthwise_multiplier", default=1) * width
    pointwise_channels = config.integer("depthwise_separable_out_channel", default=1024)
    tensors: tuple[ParameterTensor, ...] = ()
    for half in ("feed_forward_in", "feed_forward_out"):
        tensors += norm_pair(f"{half}.layer_norm", width)
        tensors += linear(f"{half}.gate_up_proj", 2 * inner, width, "audio", "none", bias=True)
        tensors += linear(f"{half}.down_proj", width, inner, "audio", "none", bias=True)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        tensors += linear(f"self_attn.{name}", width, width, "audio", "none", bias=True)
    tensors += norm_pair("conv.layer_norm", width)
    tensors += _conv("conv.glu.ext_pw_conv_1d", 2 * expanded_channels, width, 1)
    tensors += tuple(ParameterTensor(f"conv.glu.{name}", (1, expanded_channels, 1), "audio") for name in ("b1", "b2"))
    tensors += _conv("conv.dw_sep_conv_1d.dw_conv", depthwise_channels, 1, kernel)
    tensors += _conv("conv.dw_sep_conv_1d.pw_conv", pointwise_channels, depthwise_channels, 1)
    tensors += _conv("conv.ext_pw_conv_1d", expanded_channels, width, 1)
    return tensors + norm_pair("layer_norm_att", width) + norm_pair("layer_norm", width)


def _conv(name: str, outputs: int, inputs: int, *kernel: int) -> tuple[ParameterTensor, ...]:
    """List the weight [outputs, inputs, *kernel] and the bias of a convolution."""
    weight = ParameterTensor(name + ".weight", (outputs, inputs, *kernel), "audio")
    return weight, vector(name + ".bias", outputs, "audio")


LAYERS, PIXELS = LayerSizes(width=1152, heads=16, inner=4304, depth=27), Pixels(3, side_pixels=448, patch_side=14)
"""What the class takes where a configuration is silent."""
POOLED = 2
"""Rows and columns of patches that become one image token (``AvgPool2d``)."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: phi4_multimodal``, whose towers are modules of the language model."""
    outer, outputs = model.outer, model.language.hidden_size
    if outer.number("embd_pdrop", default=0.0):
        outer.fail("embd_pdrop", "a dropout on image tokens has no memory model", "it is 0 in released files")
    tower = siglip(config, model, "phi4:phi4", attention="phi4:masked_apart", layers=LAYERS, pixels=PIXELS)
    tile_side = tower.patch_side * isqrt(tower.rows_per_tile)
    config.ignore("model_type", "image_token_id")
    crop_size, feature_layer = config.integer("crop_size", default=tile_side), config.raw("feature_layer")
    feature_layer = -2 if feature_layer is None else feature_layer
    if crop_size != tile_side:
        config.fail("crop_size", f"crops of {crop_size} pixels have no memory model where image_size is {tile_side}")
    if tile_side // tower.patch_side % POOLED:
        config.fail(
            "image_size", f"an odd number of patches a side has no memory model: {tile_side // tower.patch_side}"
        )
    ((block, depth),) = tower.blocks
    if isinstance(block.mlp, Mlp):
        block = block._replace(mlp=CopiedGradientMlp(*block.mlp))
    if (
        not isinstance(feature_layer, int)
        or isinstance(feature_layer, bool)
        or not 0 < depth + 1 + feature_layer <= depth
    ):
        config.fail(
            "feature_layer", f"feature_layer = {feature_layer!r} has no memory model", "one layer from the end is"
        )
    used_layers = depth + 1 + feature_layer
    return tower._replace(
        blocks=((block, used_layers),),
        idle_blocks=((block, depth - used_layers),) if used_layers < depth else (),
        closing_tensors=(),
        unused_tensors=(*tower.closing_tensors, *pooling_head(config, tower)),
        projector_tensors=(
            ParameterTensor("global_img_feature_extensor", (1, 1, tower.hidden), "projector"),
            ParameterTensor("sub_img_feature_extensor", (1, 1, 1, tower.hidden), "projector"),
            *two_matrices(("img_projection_up", "img_projection_down"), tower.hidden, outputs, outputs),
        ),
        patches_per_token=POOLED * POOLED,
        tokens_per_tile=tower.rows_per_tile // (POOLED * POOLED),
        position_bytes_per_patch=4,
        processor="phi4:process",
        placement="put",
        returns_image_tokens=False,
        activation="gelu",
        other_towers=(read_audio(outer.section("audio_config"), outputs),),
        path="embed_tokens_extend.image_embed.img_processor",
        projector_path="embed_tokens_extend.image_embed",
    )


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings``: [patches, hidden], and the values that live while layers run, the padding mask among
    them.

    The hook is on ``patch_embedding``. Positions are looked up for every patch.
    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    weight, bias, table = vision.stem_tensors
    x, live = require_input_grads(
        patch_convolution(ctx, vision, ctx.tokens, weight, bias, outside=True), require_grad=require_grad
    )
    x = add_position_per_patch(ctx, x, table)
    _, masks = with_padding_mask(ctx, x, require_grad=False)
    return x, live + masks


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``image_token_compression`` (average pooling), ``img_projection_up`` and ``img_projection_down``.

    A learned token ends each row of the squares, and another one separates the whole picture from them.
    """
    global_token, row_token, *matrices = vision.projector_tensors
    tokens = ctx.setting.image_tokens or x.shape[0] // vision.patches_per_token
    normed = Value(ctx.tape.new(x.shape, x.dtype, "post_layernorm"), x.shape, x.dtype)
    joined = Value(ctx.tape.new(x.shape, x.dtype, "rows of all squares side by side"), x.shape, x.dtype)
    attention_pooling_head(ctx, vision, x)
    ctx.attention_locals = []  # `get_img_features` has taken its layer out of the tower's output
    del normed, joined
    x = average_pool(ctx, vision, x)
    x = _join_overview_and_squares(ctx, x)
    x = prepend_class_token(ctx, x, row_token, tokens)
    x = prepend_class_token(ctx, x, global_token, tokens)
    x = projector_mlp(ctx, vision, x, tuple(matrices))
    return copy(ctx.tape, x, "cat image tokens")


def _join_overview_and_squares(ctx: Context, x: Value) -> Value:
    """Join the rows of the whole picture and of the squares by a copy. Backward pads the gradient of each."""
    out = ctx.tape.value(x.shape, x.dtype, "squares put together")
    return operator(ctx.tape, out, x, "slice backward", later=[(x.shape, x.dtype, "slice backward")])


MAX_SQUARES = 36
PROCESSOR_DEFAULT = "the processor's default; the model's own preprocessor_config.json may say another"
MIN_SIDE = 10
"""Pixels that a side has at least when the picture is scaled."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count squares, patches and image tokens of a picture: squares that cover it, and the whole in one more.

    Image tokens are those that the picture fills, and one after each row of them.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    patches_per_side = math.isqrt(vision.rows_per_tile)
    tile_side = patches_per_side * vision.patch_side
    columns, rows = math.ceil(width / tile_side), math.ceil(height / tile_side)
    if columns * rows > MAX_SQUARES:
        columns, rows = closest_aspect_ratio_grid(height, width, tile_side, MAX_SQUARES)
    width_scale, height_scale = tile_side * columns / width, tile_side * rows / height
    scaled_size = (
        (tile_side * columns, int(height * width_scale))
        if width_scale < height_scale
        else (int(width * height_scale), tile_side * rows)
    )
    if min(*scaled_size, tile_side) < MIN_SIDE:
        raise PictureError(f"the processor refuses a picture of {width} by {height}: it is too narrow")
    token_rows = _filled_tokens(tile_side * rows - scaled_size[1], patches_per_side * rows, vision)
    token_columns = _filled_tokens(tile_side * columns - scaled_size[0], patches_per_side * columns, vision)
    overview_side = patches_per_side // 2
    tokens = token_rows * (token_columns + 1) + 1 + overview_side * (overview_side + 1)
    squares = columns * rows + 1
    return ProcessedPicture(
        pictures=squares,
        patches=squares * vision.rows_per_tile,
        image_tokens=tokens,
        defaults=(("max_tiles", MAX_SQUARES, PROCESSOR_DEFAULT),),
    )


def _filled_tokens(padding: int, patches: int, vision: Vision) -> int:
    """Image tokens along a side: every second patch that is not all padding. ``padding``: in pixels."""
    return ceil_div(patches - padding // vision.patch_side, 2)


def masked_apart(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute attention under a padding mask. Its output's gradient is copied, as it is not contiguous in memory."""
    out = masked_attention(ctx, attention, x)
    del x
    return gradient_copied(ctx.tape, out, adapted=ctx.setting.adapter is not None)


FORWARDS = {
    "phi4": TowerForward(stem, project),
}
"""By name, the forward passes of a kind of tower."""
