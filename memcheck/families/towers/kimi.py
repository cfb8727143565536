"""Kimi K2.5 and K2.6: MoonViT on patches of all pictures in one row, merged by fours (modeling_kimi_k25.py).

MoonViT: learned positions by a weighted sum of sixteen, rows merged by fours after the last norm.

modeling_kimi_k25.py of transformers 5.23: Kimi_K25VisionPositionEmbeddings, Kimi_K25VisionModel.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import add, cast, operator
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import LayerSizes, TowerForward, norm_pair, require_divisible_heads, two_matrices
from memcheck.families.towers.forward_parts import (
    cat_image_tokens,
    keep_in_variable,
    last_hidden_state,
    layer_norm,
    require_input_grads,
)
from memcheck.families.towers.qwen import embedded_patches, merge, packed_block, packed_mlp, rotary_tables
from memcheck.models.decoder import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import Buffers, TowerAttention, Vision


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: kimi_k25``. Files of the checkpoint's own code have names of their own for these
    keys.
    """
    outer, outputs = model.outer, model.language.hidden_size
    size = _layer_sizes(config)
    width = size.width
    grid = (
        config.integer("pos_emb_height", "init_pos_emb_height", default=64),
        config.integer("pos_emb_width", "init_pos_emb_width", default=64),
    )
    frames = config.integer("pos_emb_time", "init_pos_emb_time", default=4)
    patch = config.integer("patch_size", default=14)
    kernel = config.integers("merge_kernel_size") or (2, 2)
    config.ignore(
        "model_type", "rope_parameters", "initializer_range", "merge_type", "mm_projector_type", "pos_emb_type",
        "projector_hidden_act", "projector_ln_eps", "video_attn_type",
    )  # fmt: skip
    for key, value in (("mm_hidden_size", width), ("text_hidden_size", outputs)):
        config.expect(key, value, f"{key} is not {value}, the width of what it names")
    if outer.integer("projection_hidden_size", default=width, null=width) != width:
        outer.fail("projection_hidden_size", f"projection_hidden_size is not the tower's width {width}")
    outer.ignore(
        "media_placeholder_token_id", "projection_layer_norm_eps", "use_unified_vision_chunk", "video_placeholder"
    )
    merge = kernel[0] * kernel[-1]
    merged_width = width * merge
    return Vision(
        kind="kimi:kimi",
        hidden=width,
        blocks=((_layer(config, size), size.depth),),
        values_per_patch=3 * patch * patch,
        patches_per_token=merge,
        token_width=outputs,
        stem_tensors=(
            ParameterTensor("patch_embed.proj.weight", (width, 3, patch, patch), "vision"),
            ParameterTensor("patch_embed.proj.bias", (width,), "vision"),
            ParameterTensor("patch_embed.pos_emb.position_embeddings", (*grid, width), "position"),
        ),
        projector_tensors=(
            *norm_pair("pre_norm", width),
            *two_matrices(("in_proj", "out_proj"), merged_width, merged_width, outputs),
        ),
        embedding_can_be_hooked=False,
        residual_in_autocast_dtype=True,
        pixels_arrive_in_fp32=False,
        closing_tensors=norm_pair("final_layernorm", width),
        buffers=(Buffers(1, (frames + 1) * width),),
        patch_side=patch,
        separator_tokens=2,
        returns_image_tokens=False,
        heads=size.heads,
        path="vision_tower",
        layers_path="layers",
        projector_path="mm_projector",
    )


def _layer_sizes(config: ConfigReader) -> LayerSizes:
    """Read the dimensions of MoonViT's layers, from transformers' keys or those of the checkpoint's own code."""
    width = config.integer("hidden_size", "vt_hidden_size", default=1152)
    heads = config.integer("num_attention_heads", "vt_num_attention_heads", default=16)
    require_divisible_heads(config, width, heads)
    depth = config.integer("num_hidden_layers", "vt_num_hidden_layers", default=27, maximum=MAX_LAYERS)
    inner = config.integer("intermediate_size", "vt_intermediate_size", default=4304)
    return LayerSizes(width=width, heads=heads, inner=inner, depth=depth)


def _layer(config: ConfigReader, size: LayerSizes) -> Block:
    """Build a layer of MoonViT: a matrix each for q, k and v, and a network of two matrices."""
    width, activation = size.width, config.activation(default="gelu_pytorch_tanh")
    mlp = packed_mlp(width, size.inner, activation, ("fc1", "fc2"), gated=False)
    tensors: tuple[ParameterTensor, ...] = ()
    for letter in "qkv":
        tensors += linear(f"attn.{letter}_proj", width, width, "attention", "column", bias=True)
    tensors += linear("attn.proj", width, width, "attention", "row", bias=True)
    attention = TowerAttention(size.heads, width // size.heads, kind="packed-separate", tensors=tensors)
    return packed_block(width, size.heads, mlp, "layernorm", attention=attention)


NEIGHBOURS = 16
"""Points of the learned grid in a bicubic sum."""


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embed`` and add positions in space and in time (a fixed table in fp32): [patches, hidden].

    Also returns the rotary tables, which live while the layers run. ``require_grad``: make the output of
    ``patch_embed`` require a gradient, as ``enable_input_require_grads`` does.
    """
    tape = ctx.tape
    x, live = require_input_grads(_patches(ctx, vision), require_grad=require_grad)
    position = _positions(ctx, vision.stem_tensors[2])
    frames = Value(tape.new(position.shape, "fp32", "positions in time"), position.shape, "fp32")
    position = add(tape, position, frames, "add positions in time")
    del frames
    return add(tape, x, cast(tape, position, x.dtype), "add positions"), live + rotary_tables(ctx, vision)


def _patches(ctx: Context, vision: Vision) -> Value:
    """Compute ``proj`` [patches, hidden]: a convolution over pixels in the weights' dtype, or in autocast's.

    Without autocast the pixels are not cast, so that nothing but the output is allocated.
    """
    patch_embedding = vision._replace(stem_tensors=vision.stem_tensors[:2])
    if ctx.tape.autocast:
        return embedded_patches(ctx, patch_embedding)
    tape = ctx.tape
    weight, bias = (ctx.parameter(t.name.removesuffix(".weight"), t.shape) for t in patch_embedding.stem_tensors)
    out = tape.value((ctx.tokens, vision.hidden), weight.dtype, "patch_embed")
    return operator(tape, out, (tape.parameter(weight), tape.parameter(bias)), "patch_embed dW")


def _positions(ctx: Context, table: ParameterTensor) -> Value:
    """Interpolate learned positions: [patches, hidden]; saves indices and weights of the table's rows.

    ``F.embedding_bag(indices, table, per_sample_weights=weights, mode="sum")``.
    """
    tape, rows = ctx.tape, ctx.tokens
    parameter = ctx.parameter(table.name, table.shape)
    width, dtype, trained = table.shape[2], parameter.dtype, parameter.requires_grad
    out = tape.value((rows, width), dtype, "embedding_bag")
    saved = tape.new((rows, NEIGHBOURS), "int64", "position indices"), tape.new((rows, NEIGHBOURS), dtype, "weights")
    if not trained:
        return out
    return operator(tape, out, tape.parameter(parameter), (table.shape, dtype, "embedding_bag backward"), saves=saved)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``final_layernorm``, the mean over frames of each group of four rows, and ``mm_projector``."""
    tape = ctx.tape
    x = last_hidden_state(ctx, vision, x)
    shape, dtype = x.shape, x.dtype
    selected = tape.value(shape, dtype, "rows by merge_index")
    merge_index = tape.new((shape[0],), "int64", "merge_index")
    selected = operator(tape, selected, x, "index backward", saves=(merge_index,))
    pooled = tape.value(shape, dtype, "mean over frames")
    pooled = operator(tape, pooled, selected, (shape, dtype, "mean backward"))
    del selected, x
    keep_in_variable(ctx, pooled)
    normed = layer_norm(ctx, pooled, vision.projector_tensors)
    return cat_image_tokens(ctx, merge(ctx, vision, normed, vision.projector_tensors[2:]))


FORWARDS = {
    "kimi": TowerForward(stem, project, runs_layers_itself=True),
}
"""By name, the forward passes of a kind of tower."""
