"""MiniMax M3 VL: CLIP's layers on patches of all pictures in one row, rotated in part (modeling_minimax_m3_vl.py).

MiniMax M3 VL: patches in a row, a norm in front of the layers, two projectors (modeling_minimax_m3_vl.py).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import rotate_half
from memcheck.autograd.operator import cast, cat, slices
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    IRRELEVANT_KEYS,
    SIGLIP,
    LayerSizes,
    TowerForward,
    norm_pair,
    read_layer_sizes,
    refuse_dropout,
    tower_layer,
    tower_mlp,
    two_matrices,
)
from memcheck.families.towers.attention import attention_per_picture, projections
from memcheck.families.towers.forward_parts import (
    cat_image_tokens,
    keep_in_variable,
    layer_norm,
    patch_convolution,
    projector_mlp,
)
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

AXES = 3
"""Time, height and width: each has as many pairs of a head's channels."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: minimax_m3_vl``: four patches become one image token after the first two of four
    matrices.
    """
    outer, outputs = model.outer, model.language.hidden_size
    size = read_layer_sizes(config, LayerSizes(width=1280, heads=16, inner=5120, depth=32))
    width = size.width
    pixel_channels = config.integer("num_channels", default=3)
    patch = config.integer("patch_size", default=14)
    frames = config.integer("temporal_patch_size", default=2)
    merge_side = config.integer("spatial_merge_size", default=2)
    config.ignore(*IRRELEVANT_KEYS, "image_size")
    refuse_dropout(config, "attention_dropout")
    projector_width = outer.integer("projector_hidden_size", default=6144)
    merge = merge_side * merge_side
    message = f"merged_hidden_size is not {outputs * merge}, which its class makes of it"
    outer.expect("merged_hidden_size", outputs * merge, message)
    return Vision(
        kind="minimax_m3:minimax_m3",
        hidden=width,
        blocks=((_layer(config, size), size.depth),),
        values_per_patch=pixel_channels * frames * patch * patch,
        patches_per_token=merge,
        token_width=outputs,
        stem_tensors=(
            ParameterTensor("embeddings.proj.weight", (width, pixel_channels, frames, patch, patch), "vision"),
            *norm_pair("pre_layrnorm", width),
        ),
        projector_tensors=(
            *two_matrices(("linear_1", "linear_2"), width, projector_width, outputs),
            *two_matrices(("merge_linear_1", "merge_linear_2"), outputs * merge, projector_width, outputs),
        ),
        embedding_can_be_hooked=False,
        patch_side=patch,
        processor="processors:process_minimax",
        separator_tokens=2,
        heads=size.heads,
        path="vision_tower",
        layers_path="layers",
        projector_path="multi_modal_projector",
    )


def _layer(config: ConfigReader, size: LayerSizes) -> Block:
    """Build a layer of CLIP whose attention rotates a part of each head: as many pairs of elements for each axis."""
    mlp = tower_mlp(size.width, size.inner, config.activation(default="gelu"), SIGLIP.mlp)
    block = tower_layer(size.width, size.heads, mlp, "minimax_m3:part_rotated")
    if not isinstance(block.mixer, TowerAttention):
        return block
    pairs_per_axis = block.mixer.head_dim // AXES // 2
    return block._replace(mixer=block.mixer._replace(rotary_dim=2 * AXES * pairs_per_axis))


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings`` and ``pre_layrnorm``, and the rotary tables in the norm's dtype. No hook finds these
    modules.
    """
    weight, *norm = vision.stem_tensors
    x = patch_convolution(ctx, vision, ctx.tokens, weight, None)
    keep_in_variable(ctx, x)  # `embeds`, a variable while the layers run
    mixer = vision.blocks[0][0].mixer
    rotated = mixer.rotary_dim if isinstance(mixer, TowerAttention) else 0
    tables = [ctx.tape.value((ctx.tokens, rotated), ctx.setting.param_dtype, "rotary table") for _ in range(2)]
    return layer_norm(ctx, x, tuple(norm)), tables


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector``: two matrices for each patch, then two for each four patches side by side."""
    projected = projector_mlp(ctx, vision, x, vision.projector_tensors[:4])
    del x
    projected = projected.view(
        projected.shape[0] // vision.patches_per_token, projected.shape[1] * vision.patches_per_token
    )
    return cat_image_tokens(ctx, projector_mlp(ctx, vision, projected, vision.projector_tensors[4:]))


def part_rotated(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute attention that rotates the first ``rotary_dim`` elements of each head, in the dtype of the tower's norm.

    modeling_minimax_m3_vl.py, apply_rotary_pos_emb_vision: ``torch.cat`` joins them with the rest of the head.
    """
    tape, shape = ctx.tape, (ctx.tokens, attention.heads, attention.head_dim)
    q, k, v = projections(ctx, attention, x)
    del x
    rotated_shape, passed_shape = (
        (*shape[:2], attention.rotary_dim),
        (*shape[:2], attention.head_dim - attention.rotary_dim),
    )
    dtype = ctx.setting.param_dtype
    unrotated = q, k
    split_states = [slices(tape, states, rotated_shape, passed_shape) for states in unrotated]
    del q, k
    for halves in split_states:
        halves[0] = rotate_half(tape, halves[0], dtype)
    joined = []
    for rotated, passed in split_states:
        promoted = cast(tape, passed, rotated.dtype) if passed.dtype != rotated.dtype else passed  # torch.cat promotes
        joined.append(cat(tape, (rotated, promoted), shape, "cat rotary"))
    del rotated, passed, promoted
    split_states.clear()
    q, k = joined
    joined.clear()
    del unrotated
    return attention_per_picture(ctx, attention, q, k, v)


FORWARDS = {
    "minimax_m3": TowerForward(stem, project, runs_layers_itself=True),
}
"""By name, the forward passes of a kind of tower."""
