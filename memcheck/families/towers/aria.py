"""Aria: Idefics 3's tower on padded pictures, and learned rows that read each picture's (modeling_aria.py).

Aria: learned rows read each picture's by torch.nn.MultiheadAttention, weights and all (modeling_aria.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from memcheck.autograd.attention import batched, softmax
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy, scale
from memcheck.autograd.matrix import product
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import AroundTower
from memcheck.families.pictures import Limits, ProcessedPicture, no_clips, no_limits
from memcheck.families.tower import TowerForward
from memcheck.families.towers.forward_parts import layer_norm, linear_layer, patch_convolution, return_image_tokens
from memcheck.families.towers.idefics2 import with_positions_of_rows
from memcheck.families.towers.parts import norm_pair
from memcheck.families.towers.siglip import IDEFICS3, masked, siglip
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_SIZE, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision

QUERIES = {1225: 128, 4900: 256}
"""Image tokens by the number of a picture's rows, where the configuration states none."""
DIGITS = 10
"""More than a number of rows has."""


def read(config: ConfigReader, model: AroundTower) -> Vision:
    """``model_type: aria``. The rows are read before the tower's last norm, whose result is unused."""
    outer, outputs = model.outer, model.language.hidden_size
    kind = config.text("model_type", default="idefics3_vision")
    if kind != "idefics3_vision":
        config.fail("model_type", f"memcheck reads no Aria with a {kind} tower", "read is idefics3_vision")
    if outer.raw("vision_feature_layer") not in (None, -1):
        outer.fail("vision_feature_layer", "only rows of the last layer have a memory model")
    outer.ignore("initializer_range", "max_value_projector_patch_to_query_dict", "vision_feature_select_strategy")
    outer.ignore("projector_hidden_act")
    queries = _queries(outer)
    tower = siglip(config, model, "aria:aria", attention="masked", defaults=IDEFICS3)
    if tower.tile not in queries:
        outer.fail("projector_patch_to_query_dict", f"no number of image tokens for the {tower.tile} rows of a picture")
    width, heads = tower.hidden, tower.heads
    reader = "cross_attn."
    return tower._replace(
        closing=(),
        unused=tower.closing,
        projector=(
            ParameterTensor("query", (max(queries.values()), width), "projector"),
            *norm_pair(f"{reader}layer_norm", width),
            *norm_pair(f"{reader}layer_norm_kv", width),
            *linear(f"{reader}q_proj", width, width, "projector", "none"),
            *linear(f"{reader}k_proj", width, width, "projector", "none"),
            *linear(f"{reader}v_proj", width, width, "projector", "none"),
            ParameterTensor(f"{reader}multihead_attn.in_proj_weight", (3 * width, width), "projector"),
            ParameterTensor(f"{reader}multihead_attn.in_proj_bias", (3 * width,), "projector"),
            *linear(f"{reader}multihead_attn.out_proj", width, width, "projector", "none", bias=True),
            *linear(f"{reader}linear", width, width, "projector", "none", bias=True),
            *norm_pair("layer_norm", width),
            *linear("feed_forward.linear_in", outputs, width, "projector", "none"),
            *linear("feed_forward.linear_out", outputs, outputs, "projector", "none"),
        ),
        perceiver=Perceiver(
            latents=max(queries.values()), heads=heads, kv_heads=heads, head_dim=width // heads, activation="gelu_new"
        ),
        resampled=queries[tower.tile],
        merge=1,
        tile=0,
        side=tower.tile,
        cast=False,
        gives_out=False,
        mask_bytes=1,
        processor="aria:process",
    )


def _queries(outer: ConfigReader) -> dict[int, int]:
    """Image tokens by rows of a picture; keys are text in a file."""
    key = "projector_patch_to_query_dict"
    stated = outer.raw(key)
    if stated is None:
        return QUERIES
    if not isinstance(stated, Mapping) or not stated:
        outer.fail(key, f"{key} must be a mapping from rows to image tokens")
    found: dict[int, int] = {}
    for rows, tokens in stated.items():
        text = str(rows)
        counts = text.isascii() and text.isdigit() and len(text) < DIGITS
        if not counts or isinstance(tokens, bool) or not isinstance(tokens, int):
            outer.fail(key, f"{key} must have numbers of rows and of image tokens")
        if not 1 <= tokens <= MAX_SIZE:
            outer.fail(key, f"{key} = {tokens} is outside 1 ... {MAX_SIZE}")
        found[int(text)] = tokens
    return found


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, the module that the hook is on. Positions are looked up for every row of every picture."""
    weight, bias, table = vision.stem
    x = patch_convolution(ctx, vision, ctx.tokens, weight, bias)
    return masked(ctx, with_positions_of_rows(ctx, x, table), require_grad=require_grad)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector`` on the last layer's rows. The tower's last norm has made others, in its output."""
    reader = vision.perceiver
    if reader is None:
        return x
    _beside(ctx, vision, x)
    query, *cross, weight, bias, first, second = vision.projector
    tokens = ctx.setting.image_tokens or max(1, ctx.setting.images) * vision.resampled
    out = _crossed(ctx, reader, tuple(cross), _grown_queries(ctx, query, tokens), x)
    inner = linear_layer(ctx, layer_norm(ctx, out, (weight, bias)), first)
    del out
    acted = activation(ctx.tape, inner, reader.activation)
    del inner
    return return_image_tokens(ctx, linear_layer(ctx, acted, second), joins=False)


def _beside(ctx: Context, vision: Vision, x: Value) -> None:
    """``post_layernorm``, whose rows nothing reads."""
    dtype = "fp32" if ctx.tape.autocast else x.dtype
    ctx.extra_outputs.append(ctx.tape.value(x.shape, dtype, "post_layernorm"))


def _grown_queries(ctx: Context, query: ParameterTensor, tokens: int) -> Value:
    """The learned queries, ``[tokens, width]``: one row per image token of a picture, repeated for every picture."""
    tape, p = ctx.tape, ctx.parameter(query.name, query.shape)
    out = tape.value((tokens, query.shape[1]), p.dtype, "repeat queries")
    return operator(tape, out, tape.parameter(p), (query.shape, p.dtype, "sum"))


def _crossed(ctx: Context, perceiver: Perceiver, tensors: tuple[ParameterTensor, ...], y: Value, x: Value) -> Value:
    """AriaCrossAttention. MultiheadAttention has the pictures in second place, so that each product copies its rows;
    autocast casts the parts of its joined matrix anew. Scores are the product's sum with a mask, and their softmax is
    in their dtype.
    """
    tape, n = ctx.tape, max(1, ctx.setting.images)
    norms, (query, key, value) = tensors[:4], tensors[4:7]
    joined, offsets, output, output_bias, last, _ = tensors[7:]
    several = n > 1
    q = linear_layer(ctx, layer_norm(ctx, y, norms[:2]), query)
    rows = layer_norm(ctx, x, norms[2:])
    k, v = linear_layer(ctx, rows, key), linear_layer(ctx, rows, value)
    arguments = [rows, q, k, v]  # variables of the module's forward
    del rows
    width, few, many = q.shape[1], q.shape[0] // n, k.shape[0] // n
    w, b = ctx.parameter(joined.name, joined.shape), ctx.parameter(offsets.name, offsets.shape)
    weights = tape.views(tape.parameter(w), *3 * [(width, width)])
    biases = tape.views(tape.parameter(b), *3 * [(width,)])
    made = [
        product(tape, copy(tape, each, "contiguous") if several else each, weight, "in_proj", bias)
        for each, weight, bias in zip((q, k, v), weights, biases, strict=True)
    ]
    q, k, v = (each.view(n, perceiver.heads, each.shape[0] // n, perceiver.head_dim) for each in made)
    made.clear()
    shape = (n, perceiver.heads, few, many)
    mask = tape.new(shape, q.dtype, "attention mask")
    boolean = tape.new((n * perceiver.heads, many), "bool", "repeated padding mask")
    q = scale(tape, q, "q_scaled")
    scores = batched(tape, q, k, shape, "attention scores")
    del q, k
    scores = softmax(tape, scores, "fp32" if tape.autocast else None)
    out = batched(tape, scores, v, (n, perceiver.heads, few, perceiver.head_dim), "attention output")
    del v
    out = copy(tape, out, "reshape").view(few * n, width)
    out = _matrix(ctx, out, output, output_bias)
    mean = tape.new((n, few, many), scores.dtype, "average weights")
    del scores, mask, boolean
    out = copy(tape, out, "contiguous") if several else out
    out = linear_layer(ctx, out, last, bias=True)
    del mean, arguments
    return out


def _matrix(ctx: Context, x: Value, weight: ParameterTensor, bias: ParameterTensor) -> Value:
    """``out_proj``, whose weight torch.nn.MultiheadAttention reads past its adapter."""
    tape = ctx.tape
    w, b = (ctx.parameter(t.name.removesuffix(".weight"), t.shape) for t in (weight, bias))
    return product(tape, x, tape.parameter(w), weight.name, tape.parameter(b))


FORWARDS = {
    "aria": TowerForward(stem, project, wrapped=("attention",)),
}
"""By name, the forward passes of a kind of tower."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Aria: a square that every picture is padded to (image_processing_aria.py)."""
    no_clips(frames)
    no_limits(limits)
    why = "the processor's default: split_image adds crops, and max_image_size 490 makes a quarter of the rows"
    defaults = (("max_image_size", math.isqrt(vision.side) * vision.patch, why),)
    return ProcessedPicture(pictures=1, patches=vision.side, tokens=vision.resampled, defaults=defaults)
