"""Aria: Idefics 3's tower on padded pictures, and learned rows that read each picture's (modeling_aria.py).

Aria: learned rows read each picture's by torch.nn.MultiheadAttention, weights and all (modeling_aria.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import batched, product, softmax
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import copy, operator, scale
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import Limits, ProcessedPicture, TowerForward, no_clips, no_limits, norm_pair, two_matrices
from memcheck.families.towers.forward_parts import (
    layer_norm,
    linear_layer,
    patch_convolution,
    return_image_tokens,
    unused_post_layernorm,
)
from memcheck.families.towers.idefics2 import add_position_per_patch
from memcheck.families.towers.siglip import IDEFICS3_LAYERS, IDEFICS_PIXELS, siglip, with_padding_mask
from memcheck.models.decoder import linear
from memcheck.models.reader import MAX_SIZE, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision

QUERIES = {1225: 128, 4900: 256}
"""Image tokens by the number of a picture's rows, where the configuration states none."""
DIGITS = 10
"""More than a number of rows has."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of Aria (``model_type: aria``): Idefics 3's SigLIP, and a projector of learned queries.

    The projector reads the rows before the tower's last norm, whose result is unused.
    """
    outer, outputs = model.outer, model.language.hidden_size
    tower_type = config.text("model_type", default="idefics3_vision")
    if tower_type != "idefics3_vision":
        config.fail("model_type", f"memcheck reads no Aria with a {tower_type} tower", "read is idefics3_vision")
    if outer.raw("vision_feature_layer") not in (None, -1):
        outer.fail("vision_feature_layer", "only rows of the last layer have a memory model")
    outer.ignore("initializer_range", "max_value_projector_patch_to_query_dict", "vision_feature_select_strategy")
    outer.ignore("projector_hidden_act")
    queries = _image_tokens_by_patches(outer)
    tower = siglip(config, model, "aria:aria", attention="masked", layers=IDEFICS3_LAYERS, pixels=IDEFICS_PIXELS)
    if tower.rows_per_tile not in queries:
        outer.fail(
            "projector_patch_to_query_dict",
            f"no number of image tokens for the {tower.rows_per_tile} rows of a picture",
        )
    width, heads, most_queries = tower.hidden, tower.heads, max(queries.values())
    return tower._replace(
        closing_tensors=(),
        unused_tensors=tower.closing_tensors,
        projector_tensors=_projector(most_queries, width, outputs),
        perceiver=Perceiver(
            latents=most_queries, heads=heads, kv_heads=heads, head_dim=width // heads, activation="gelu_new"
        ),
        tokens_per_picture=queries[tower.rows_per_tile],
        patches_per_token=1,
        rows_per_tile=0,
        largest_picture=tower.rows_per_tile,
        pixels_arrive_in_fp32=False,
        returns_image_tokens=False,
        mask_bytes_per_pixel=1,
        processor="aria:process",
    )


def _projector(queries: int, width: int, outputs: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of AriaProjector: learned ``queries`` that attend to the patches, a norm, and two matrices."""
    module = "cross_attn."
    return (
        ParameterTensor("query", (queries, width), "projector"),
        *norm_pair(f"{module}layer_norm", width),
        *norm_pair(f"{module}layer_norm_kv", width),
        *linear(f"{module}q_proj", width, width, "projector", "none"),
        *linear(f"{module}k_proj", width, width, "projector", "none"),
        *linear(f"{module}v_proj", width, width, "projector", "none"),
        ParameterTensor(f"{module}multihead_attn.in_proj_weight", (3 * width, width), "projector"),
        ParameterTensor(f"{module}multihead_attn.in_proj_bias", (3 * width,), "projector"),
        *linear(f"{module}multihead_attn.out_proj", width, width, "projector", "none", bias=True),
        *linear(f"{module}linear", width, width, "projector", "none", bias=True),
        *norm_pair("layer_norm", width),
        *two_matrices(("feed_forward.linear_in", "feed_forward.linear_out"), width, outputs, outputs, bias=False),
    )


def _image_tokens_by_patches(outer: ConfigReader) -> dict[int, int]:
    """Read how many image tokens a picture of a given number of patches has (``projector_patch_to_query_dict``).

    The keys are text in a file.
    """
    key = "projector_patch_to_query_dict"
    mapping = outer.raw(key)
    if mapping is None:
        return QUERIES
    if not isinstance(mapping, Mapping) or not mapping:
        outer.fail(key, f"{key} must be a mapping from rows to image tokens")
    tokens_by_patches: dict[int, int] = {}
    for rows, tokens in mapping.items():
        text = str(rows)
        is_number = text.isascii() and text.isdigit() and len(text) < DIGITS
        if not is_number or isinstance(tokens, bool) or not isinstance(tokens, int):
            outer.fail(key, f"{key} must have numbers of rows and of image tokens")
        if not 1 <= tokens <= MAX_SIZE:
            outer.fail(key, f"{key} = {tokens} is outside 1 ... {MAX_SIZE}")
        tokens_by_patches[int(text)] = tokens
    return tokens_by_patches


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute the patch embedding and learned positions: [patches, hidden], and the values that live while layers run.

    The input-gradient hook is on the module ``embeddings``. Positions are looked up for every patch of every picture.
    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    weight, bias, table = vision.stem_tensors
    x = patch_convolution(ctx, vision, ctx.tokens, weight, bias)
    return with_padding_mask(ctx, add_position_per_patch(ctx, x, table), require_grad=require_grad)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector``: learned queries attend to each picture's patches, followed by an MLP.

    The result is [image tokens, text hidden].
    """
    perceiver = vision.perceiver
    if perceiver is None:
        return x
    unused_post_layernorm(ctx, x)
    query, *cross_attention, weight, bias, first, second = vision.projector_tensors
    tokens = ctx.setting.image_tokens or max(1, ctx.setting.images) * vision.tokens_per_picture
    out = _cross_attention(ctx, perceiver, tuple(cross_attention), _repeated_queries(ctx, query, tokens), x)
    inner = linear_layer(ctx, layer_norm(ctx, out, (weight, bias)), first)
    del out
    activated = activation(ctx.tape, inner, perceiver.activation)
    del inner
    return return_image_tokens(ctx, linear_layer(ctx, activated, second), joins=False)


def _repeated_queries(ctx: Context, query: ParameterTensor, tokens: int) -> Value:
    """Repeat the learned queries for every picture: [tokens, width], one row for each image token."""
    tape, parameter = ctx.tape, ctx.parameter(query.name, query.shape)
    out = tape.value((tokens, query.shape[1]), parameter.dtype, "repeat queries")
    return operator(tape, out, tape.parameter(parameter), (query.shape, parameter.dtype, "sum"))


def _cross_attention(
    ctx: Context, perceiver: Perceiver, tensors: tuple[ParameterTensor, ...], queries: Value, x: Value
) -> Value:
    """Compute AriaCrossAttention: ``queries`` [image tokens, width] attend to the patches ``x`` of their picture.

    torch.nn.MultiheadAttention has the batch as its second axis, so with several pictures each product copies its
    input. autocast casts the parts of the joined weight anew. Scores are added to a mask, and their softmax is in their
    dtype.
    """
    tape, pictures = ctx.tape, max(1, ctx.setting.images)
    norms, (query, key, value) = tensors[:4], tensors[4:7]
    in_proj, in_proj_bias, output, output_bias, out_linear, _ = tensors[7:]
    copies = pictures > 1
    q = linear_layer(ctx, layer_norm(ctx, queries, norms[:2]), query)
    rows = layer_norm(ctx, x, norms[2:])
    k, v = linear_layer(ctx, rows, key), linear_layer(ctx, rows, value)
    arguments = [rows, q, k, v]  # variables of the module's forward
    del rows
    width, queries_per_picture, patches_per_picture = q.shape[1], q.shape[0] // pictures, k.shape[0] // pictures
    projected = _joint_projections(ctx, (q, k, v), (in_proj, in_proj_bias), copies=copies)
    q, k, v = (
        each.view(pictures, perceiver.heads, each.shape[0] // pictures, perceiver.head_dim) for each in projected
    )
    projected.clear()
    shape = (pictures, perceiver.heads, queries_per_picture, patches_per_picture)
    mask = tape.new(shape, q.dtype, "attention mask")
    boolean = tape.new((pictures * perceiver.heads, patches_per_picture), "bool", "repeated padding mask")
    q = scale(tape, q, "q_scaled")
    scores = batched(tape, q, k, shape, "attention scores")
    del q, k
    scores = softmax(tape, scores, "fp32" if tape.autocast else None)
    out = batched(
        tape, scores, v, (pictures, perceiver.heads, queries_per_picture, perceiver.head_dim), "attention output"
    )
    del v
    out = copy(tape, out, "reshape").view(queries_per_picture * pictures, width)
    out = _output_projection(ctx, out, output, output_bias)
    average_weights = tape.new((pictures, queries_per_picture, patches_per_picture), scores.dtype, "average weights")
    del scores, mask, boolean
    out = copy(tape, out, "contiguous") if copies else out
    out = linear_layer(ctx, out, out_linear, bias=True)
    del average_weights, arguments
    return out


def _joint_projections(
    ctx: Context, states: tuple[Value, Value, Value], joint: tuple[ParameterTensor, ParameterTensor], *, copies: bool
) -> list[Value]:
    """Multiply queries, keys and values by the three parts of ``in_proj_weight``, [3 * width, width], and add biases.

    ``states``: q, k and v, [rows, width] each. ``joint``: that weight and its bias. ``copies``: each product copies its
    input, which is not contiguous.
    """
    tape, width = ctx.tape, states[0].shape[1]
    weight, bias = (tape.parameter(ctx.parameter(t.name, t.shape)) for t in joint)
    weights, biases = tape.views(weight, *3 * [(width, width)]), tape.views(bias, *3 * [(width,)])
    return [
        product(tape, copy(tape, rows, "contiguous") if copies else rows, part, "in_proj", part_bias)
        for rows, part, part_bias in zip(states, weights, biases, strict=True)
    ]


def _output_projection(ctx: Context, x: Value, weight: ParameterTensor, bias: ParameterTensor) -> Value:
    """Compute ``out_proj``. torch.nn.MultiheadAttention reads its weight directly, so a LoRA adapter on it has no
    effect.
    """
    tape = ctx.tape
    weight_parameter, bias_parameter = (ctx.parameter(t.name.removesuffix(".weight"), t.shape) for t in (weight, bias))
    return product(tape, x, tape.parameter(weight_parameter), weight.name, tape.parameter(bias_parameter))


FORWARDS = {
    "aria": TowerForward(stem, project, wrapped_modules=("attention",)),
}
"""By name, the forward passes of a kind of tower."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens of a picture, which is padded to a square (image_processing_aria.py).

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    why = "the processor's default: split_image adds crops, and max_image_size 490 makes a quarter of the rows"
    defaults = (("max_image_size", math.isqrt(vision.largest_picture) * vision.patch_side, why),)
    return ProcessedPicture(
        pictures=1, patches=vision.largest_picture, image_tokens=vision.tokens_per_picture, defaults=defaults
    )
