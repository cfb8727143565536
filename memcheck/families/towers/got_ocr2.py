"""GOT-OCR 2 and PP-Chart2Table: SAM's encoder over one square picture, which convolutions make few image tokens of.

modeling_got_ocr2.py of transformers 5.23.

GOT-OCR 2: SAM's encoder, a neck of convolutions, and two more that halve the sides (modeling_got_ocr2.py).

SAM's attention: windows of a padded picture, and distances of rows and columns in the scores (modeling_got_ocr2.py).

Whatever attention a plan asks for, its modules compute the scores themselves.
"""

from __future__ import annotations

import math

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, copy, scale
from memcheck.autograd.indexing import head_view
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import AroundTower
from memcheck.families.tower import TowerForward
from memcheck.families.towers.forward_parts import (
    convolution,
    convolve,
    given_out,
    hooked,
    laid_out,
    layer_norm,
    linear_layer,
    picked,
    with_positions,
)
from memcheck.families.towers.parts import norm_pair, split_width, square, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.stack import stack
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record

GLOBAL = (2, 5, 8, 11)
"""Layers whose patches see all others, where the configuration is silent."""
STRIDES = 16
"""Patches that become one image token: two convolutions take every second row and column."""


class SamSizes(Record):
    """What the layers of SAM's encoder have in common."""

    width: int
    heads: int
    inner: int
    side: int
    """Patches of a picture's side."""
    bias: bool
    relative: bool
    """Each layer has tables of distances."""
    activation: str


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: got_ocr2``."""
    outer, outputs = around.outer, around.language.hidden_size
    outer.ignore("image_seq_length")
    size = _sizes(config)
    colours, patch = config.integer("num_channels", default=3), square(config, "patch_size", 16)
    channels = config.integer("output_channels", default=256)
    width, tile = size.width, size.side * size.side
    config.ignore("layer_norm_eps", "initializer_range", "model_type")
    stem = [
        ParameterTensor("patch_embed.projection.weight", (width, colours, patch, patch), "vision"),
        ParameterTensor("patch_embed.projection.bias", (width,), "vision"),
    ]
    if not config.flag("use_abs_pos", default=True):
        config.fail("use_abs_pos", "a tower without a table of positions has no memory model")
    stem.append(ParameterTensor("pos_embed", (1, size.side, size.side, width), "position"))
    if size.side % 4:
        config.fail("image_size", f"{size.side} patches of a side are no multiple of 4, as convolutions want them")
    return Vision(
        kind="got_ocr2:got_ocr2",
        hidden=width,
        blocks=_layers(config, size),
        channels=colours * patch * patch,
        merge=STRIDES,
        outputs=outputs,
        stem=tuple(stem),
        closing=(
            ParameterTensor("neck.conv1.weight", (channels, width, 1, 1), "vision"),
            *norm_pair("neck.layer_norm1", channels),
            ParameterTensor("neck.conv2.weight", (channels, channels, 3, 3), "vision"),
            *norm_pair("neck.layer_norm2", channels),
        ),
        projector=(
            ParameterTensor("conv_upsampler1.weight", (2 * channels, channels, 3, 3), "projector"),
            ParameterTensor("conv_upsampler2.weight", (outputs, 2 * channels, 3, 3), "projector"),
            *linear("multimodal_projector", outputs, outputs, "projector", "none", bias=True),
        ),
        hooked=True,
        tile=tile,
        tile_tokens=tile // STRIDES,
        patch=patch,
        processor="processors:process_square",
        separators=2,
        heads=size.heads,
        path="vision_tower",
        layers="layers",
        projector_path="multi_modal_projector",
    )


def _sizes(config: ConfigReader) -> SamSizes:
    width = config.integer("hidden_size", default=768)
    heads = config.integer("num_attention_heads", default=12)
    split_width(config, width, heads)
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "attention_dropout in a vision tower has no memory model", "remove it")
    return SamSizes(
        width=width,
        heads=heads,
        inner=config.integer("mlp_dim", default=3072),
        side=square(config, "image_size", 1024) // square(config, "patch_size", 16),
        bias=config.flag("qkv_bias", default=True),
        relative=config.flag("use_rel_pos", default=True),
        activation=config.activation(default="gelu"),
    )


def _layers(config: ConfigReader, size: SamSizes) -> tuple[tuple[Block, int], ...]:
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    window = config.integer("window_size", default=14, minimum=0)
    stated = config.integers("global_attn_indexes")
    whole = GLOBAL if stated is None else stated
    width, mlp = size.width, tower_mlp(size.width, size.inner, size.activation, ("mlp.lin1", "mlp.lin2"))
    norms = tuple(Norm("layernorm", width, bias=True, name=name) for name in ("layer_norm1", "layer_norm2"))

    def make(side: int) -> Block:
        mixer = _attention(size, side)
        return Block(mixer=mixer, mlp=mlp, input_norm=norms[0], mlp_norm=norms[1])

    return stack(tuple(0 if i in whole else window for i in range(depth)), make)


def _attention(size: SamSizes, window: int) -> TowerAttention:
    """Attention in windows of ``window`` patches a side; 0: over all of the picture."""
    d, side = size.width // size.heads, window or size.side
    tensors = (
        *linear("attn.qkv", 3 * size.width, size.width, "attention", "none", bias=size.bias),
        *linear("attn.proj", size.width, size.width, "attention", "none", bias=True),
    )
    if size.relative:
        tables = ("attn.rel_pos_h", "attn.rel_pos_w")
        tensors += tuple(ParameterTensor(name, (2 * side - 1, d), "position") for name in tables)
    return TowerAttention(
        heads=size.heads,
        head_dim=d,
        kind="got_ocr2:sam_attention",
        tensors=tensors,
        bias=size.bias,
        window=window * window,
    )


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed``, whose output the hook is on, and ``pos_embed``."""
    weight, bias, table = vision.stem
    pixels = picked(ctx, vision, ctx.tokens, ctx.setting.params) if ctx.setting.params != "fp32" else None
    x, held = hooked(convolve(ctx, vision, ctx.tokens, weight, bias, pixels=pixels), leaf=leaf)
    return with_positions(ctx, x, table, looked_up=False), held


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``neck`` and ``multi_modal_projector``."""
    rows = x.shape[0]
    first, *norms = vision.closing
    x = layer_norm(ctx, convolution(ctx, x, first, rows), tuple(norms[:2]))
    x = layer_norm(ctx, convolution(ctx, x, norms[2], rows), tuple(norms[3:]))
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    halved, quartered, matrix, _ = vision.projector
    x = convolution(ctx, x, halved, rows // 4)
    x = convolution(ctx, x, quartered, rows // vision.merge)
    if ctx.setting.pictures > 1:
        x = copy(ctx.tape, x, "contiguous")
    return given_out(ctx, linear_layer(ctx, x, matrix, bias=True), joins=False)


def sam_attention(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """``window_partition``, ``attn`` and ``window_unpartition``: a padded copy of the rows, its windows, and back.

    Of one picture as a whole the matrix's output is read as it lies; that of several, or of windows, is copied.
    """
    pictures = max(1, ctx.setting.pictures)
    rows, side = x.shape[0], math.isqrt(x.shape[0] // pictures)
    window = math.isqrt(a.window) if a.window else side
    padded = -(-side // window) * window
    if a.window:
        wide = laid_out(ctx, x, pictures * padded * padded)
        x.storage = None  # the windows take its name
        x = laid_out(ctx, wide)
        del wide
    out = _attended(ctx, a, x, pictures * (padded // window) ** 2, window)
    if not a.window:
        return out
    del x
    back = laid_out(ctx, out)
    return _cut(ctx, back, rows, pictures * padded * side) if padded != side else laid_out(ctx, back)


def _cut(ctx: Context, x: Value, rows: int, between: int) -> Value:
    """``[:, :height, :width].contiguous()``: backward pads the columns with zeros, and then the rows."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    out = tape.value((rows, shape[1]), dtype, "without padding")
    return operator(tape, out, x, "slice backward", temporaries=[((between, shape[1]), dtype, "slice backward")])


def _attended(ctx: Context, a: TowerAttention, x: Value, pieces: int, side: int) -> Value:
    tape, d = ctx.tape, a.head_dim
    rows, groups = x.shape[0], pieces * a.heads
    first, last = (t for t in a.tensors if t.linear)
    qkv = linear_layer(ctx, x, first, bias=a.bias)
    del x
    shape = (groups, side * side, d)
    q, k, v = tape.views(laid_out(ctx, qkv) if pieces > 1 else head_view(tape, qkv, qkv.shape), shape, shape, shape)
    del qkv
    square = (groups, side * side, side * side)
    scores = kernels.batched(tape, scale(tape, q, "query * scale"), k, square, "attention scores")
    distances = None
    if any("rel_pos" in t.name for t in a.tensors):
        distances = _distances(ctx, a, q, square, side, apart=pieces > 1)
        scores = add(tape, scores, distances, "distances")
    probabilities = kernels.softmax(tape, scores, "fp32")
    weights = cast(tape, probabilities, q.dtype, "attention probabilities")
    del scores, probabilities
    ctx.unused.append(weights)  # `attn_weights` of the layer
    out = kernels.batched(tape, weights, v, shape, "attention output")
    out = laid_out(ctx, out.view(rows, a.heads * d))
    del distances
    return linear_layer(ctx, out, last, bias=True)


def _distances(
    ctx: Context, a: TowerAttention, q: Value, square: tuple[int, int, int], side: int, *, apart: bool
) -> Value:
    """``get_decomposed_rel_pos``: products of queries with rows of two tables, added for every pair of places, and
    copied to lie as the scores do. Queries are copied for each product; where they were copied before, those by columns
    lie as the second wants them.
    """
    tape = ctx.tape
    products: list[Value] = []
    for table in [t for t in a.tensors if "rel_pos" in t.name]:
        own = _looked_up(ctx, table, side)
        moved = q if apart and products else laid_out(ctx, q)
        products.append(kernels.batched(tape, moved, own, (side, square[0] * side, side), table.name))
        del own, moved
    dtype = products[0].dtype
    summed = tape.new(square, dtype, "distances of rows and columns")
    out = tape.value(square, dtype, "reshape_as")
    del summed
    return operator(tape, out, tuple(products), "sum")


def _looked_up(ctx: Context, table: ParameterTensor, side: int) -> Value:
    """``get_rel_pos``: the table resized by ``interpolate``, and the row of each pair of places."""
    tape, shape = ctx.tape, table.shape
    p = ctx.parameter(table.name, shape)
    resized = tape.new(shape, p.dtype, "interpolate")
    out = tape.value((side, side, shape[1]), p.dtype, "rows of distances")
    del resized
    places, dtype = tape.new((side, side), "int64", "distances"), p.dtype
    return operator(
        tape,
        out,
        tape.parameter(p),
        (shape, dtype, "interpolate backward"),
        saves=(places,),
        temporaries=[(shape, dtype, "index backward")],
    )


FORWARDS = {
    "got_ocr2": TowerForward(stem, project, loops=True, wrapped=()),
}
"""By name, the forward passes of a kind of tower."""
