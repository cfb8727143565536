"""Pixtral's tower, which Mistral 3 has too: rows of all pictures in one sequence, under one mask.

modeling_pixtral.py, modeling_mistral3.py of transformers 5.23.

Pixtral under LLaVA: rows of all pictures in one sequence, an RMSNorm in front (modeling_pixtral.py).

Mistral 3: an RMSNorm, patches unfolded picture by picture and merged, two matrices (modeling_mistral3.py).

Pixtral's processor: the longest side is limited, both become multiples of what is one image token.

transformers 5.23 models/pixtral/image_processing_pixtral.py (``get_resize_output_image_size``).
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import MASK_ALIGNMENT
from memcheck.autograd.modules import rms_norm_pieces
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
    patch_convolution_tensors,
    read_layer_sizes,
    read_pixels,
    tower_layer,
    tower_mlp,
    two_matrices,
)
from memcheck.families.towers.attention import separate_attention
from memcheck.families.towers.forward_parts import (
    linear_layer,
    patch_convolution,
    projector_mlp,
    require_input_grads,
    return_image_tokens,
)
from memcheck.models.decoder import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

NAMES = LayerNames(
    queries="attention.q_proj",
    keys="attention.k_proj",
    values="attention.v_proj",
    output="attention.o_proj",
    norms=("attention_norm", "ffn_norm"),
    mlp=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
)


def read_mistral3(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of Mistral 3: an RMSNorm, a matrix that merges four patches, and LLaVA's two."""
    outer, outputs = model.outer, model.language.hidden_size
    tower = pixtral(config, model, "pixtral:mistral3")
    merge = outer.integer("spatial_merge_size", default=2) ** 2
    layer = outer.raw("vision_feature_layer")
    if layer not in (None, -1):
        outer.fail("vision_feature_layer", f"vision_feature_layer = {layer!r} has no memory model", "-1 has")
    bias, width = outer.flag("multimodal_projector_bias"), tower.hidden
    projector = (
        ParameterTensor("norm.weight", (width,), "norm"),
        *linear("patch_merger.merging_layer", width, width * merge, "projector", "none"),
        *two_matrices(("linear_1", "linear_2"), width, outputs, outputs, bias=bias),
    )
    return tower._replace(projector_tensors=projector, patches_per_token=merge, processor="pixtral:process")


def read_lighton(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of LightOnOCR: Mistral 3 with other names, and no break after a row (modeling_lighton_ocr.py)."""
    tower = read_mistral3(config, model)
    return tower._replace(path="vision_encoder", projector_path="vision_projection", activation="gelu")


def pixtral(config: ConfigReader, model: TowerContext, kind: str) -> Vision:
    """Read Pixtral's tower without a projector."""
    size = read_layer_sizes(config, LayerSizes(width=1024, heads=16, inner=4096, depth=24))
    pixels = read_pixels(config, Pixels(3, side_pixels=1024, patch_side=16))
    config.ignore("model_type", "rope_parameters", "rope_theta", "initializer_range", "rope_scaling", "vocab_size")
    head_dim = size.width // size.heads
    config.expect("head_dim", head_dim, "head_dim is not the tower's width over its heads, which its class takes")
    config.dropout("attention_dropout")
    mlp = tower_mlp(size.width, size.inner, config.activation(default="gelu"), NAMES.mlp, bias=False)
    block = tower_layer(size.width, size.heads, mlp, "pixtral:one_sequence", NAMES, bias=False, norm="rmsnorm")
    return Vision(
        kind=kind,
        hidden=size.width,
        blocks=((block, size.depth),),
        values_per_patch=pixels.channels,
        patches_per_token=1,
        token_width=model.language.hidden_size,
        stem_tensors=(
            *patch_convolution_tensors("patch_conv", size.width, pixels, bias=False),
            ParameterTensor("ln_pre.weight", (size.width,), "norm"),
        ),
        projector_tensors=(),
        embedding_can_be_hooked=True,
        patch_side=pixels.patch_side,
        largest_picture=pixels.side_pixels,
        heads=size.heads,
        activation=model.outer.activation("projector_hidden_act", default="gelu"),
        path="vision_tower",
        layers_path="transformer.layers",
        projector_path="multi_modal_projector",
    )


def pixtral_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_conv`` and ``ln_pre``: [patches, hidden] of all pictures, and the rotary tables and the mask.

    cos and sin are in the rows' dtype. The mask over all pictures, [1, 1, rows, rows], is additive in that dtype. It is
    freed when the tower returns, unless a kernel saves it as it is, or a checkpoint saves it as an argument.
    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    tape = ctx.tape
    weight, norm = vision.stem_tensors
    x, live = require_input_grads(patch_convolution(ctx, vision, ctx.tokens, weight, None), require_grad=require_grad)
    x = rms_norm_pieces(tape, copy(tape, x, "cat pictures"), ctx.parameter(norm.name, norm.shape))
    shape = (ctx.tokens, vision.hidden // vision.heads)
    live += [tape.value(shape, x.dtype, "rotary table") for _ in range(2)]
    if ctx.setting.attention not in ("flash", "flex"):
        saved = ctx.setting.attention != "eager" and ctx.tokens % MASK_ALIGNMENT == 0
        saved = saved and x.dtype == (tape.autocast or x.dtype)
        masks = live if saved or ctx.setting.tower_checkpointed else ctx.extra_outputs
        masks.append(tape.value((1, 1, ctx.tokens, ctx.tokens), x.dtype, "picture mask"))
    return x, live


def pixtral_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector``, two matrices: [image tokens, text hidden]."""
    return return_image_tokens(ctx, projector_mlp(ctx, vision, x, vision.projector_tensors), joins=True)


def mistral3_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector``: an RMSNorm, a matrix that merges four patches, and two more matrices."""
    tape = ctx.tape
    norm, merging, *matrices = vision.projector_tensors
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape))
    x = copy(tape, copy(tape, x, "unfold"), "cat pictures")
    x = linear_layer(
        ctx, x.view(x.shape[0] // vision.patches_per_token, x.shape[1] * vision.patches_per_token), merging
    )
    return return_image_tokens(ctx, projector_mlp(ctx, vision, x, tuple(matrices)), joins=True)


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens of a picture; a break token ends each row of image tokens.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    why = "vision_config.image_size, the longest side that the released checkpoint's processor leaves"
    return resized(vision, height, width, vision.largest_picture)._replace(
        defaults=(("longest_edge", vision.largest_picture, why),)
    )


def resized(vision: Vision, height: int, width: int, longest_edge: int) -> ProcessedPicture:
    """Count patches and image tokens of a picture whose longest side is limited to ``longest_edge`` pixels."""
    factor = vision.patch_side * math.isqrt(vision.patches_per_token)
    ratio = max(height, width) / longest_edge
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    rows, columns = (height - 1) // factor + 1, (width - 1) // factor + 1
    tokens = rows * columns
    return ProcessedPicture(
        pictures=1, patches=tokens * vision.patches_per_token, image_tokens=tokens, separator_tokens=rows
    )


def one_sequence(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute Pixtral's attention: rotary, and all pictures as one sequence under one additive mask."""
    return separate_attention(ctx, attention, x, rotation="half", mask_dtype=ctx.setting.param_dtype)


FORWARDS = {
    "pixtral": TowerForward(pixtral_stem, pixtral_project),
    "mistral3": TowerForward(pixtral_stem, mistral3_project),
}
