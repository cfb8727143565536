"""GOT-OCR 2 and PP-Chart2Table: SAM's encoder over one square picture, which convolutions make few image tokens of.

modeling_got_ocr2.py of transformers 5.23.

GOT-OCR 2: SAM's encoder, a neck of convolutions, and two more that halve the sides (modeling_got_ocr2.py).

SAM's attention: windows of a padded picture, and distances of rows and columns in the scores (modeling_got_ocr2.py).

Whatever attention a plan asks for, its modules compute the scores themselves.
"""

from __future__ import annotations

import math

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.operator import add, cast, copy, head_view, operator, scale
from memcheck.autograd.tensor import Value, round_up
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    Pixels,
    TowerForward,
    norm_pair,
    patch_convolution_tensors,
    read_pixels,
    refuse_dropout,
    require_divisible_heads,
    square_side,
    tower_mlp,
)
from memcheck.families.towers.forward_parts import (
    add_position_embedding,
    hold_pixel_values,
    keep_in_variable,
    layer_norm,
    linear_layer,
    patch_convolution,
    permuted_copy,
    require_input_grads,
    return_image_tokens,
    unbiased_convolution,
)
from memcheck.models.decoder import linear, stack
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record

GLOBAL_LAYERS = (2, 5, 8, 11)
"""Layers whose patches see all others, where the configuration is silent."""
PATCHES_PER_TOKEN = 16
"""Patches that become one image token: two convolutions take every second row and column."""


class SamSizes(Record):
    """What the layers of SAM's encoder have in common."""

    width: int
    heads: int
    inner: int
    side: int
    """Patches of a picture's side."""
    bias: bool
    """The matrix of q, k and v has a bias."""
    relative: bool
    """Each layer has tables of distances."""
    activation: str


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read SAM's encoder with its neck and projector, of ``model_type: got_ocr2``."""
    outer, outputs = model.outer, model.language.hidden_size
    outer.ignore("image_seq_length")
    size = _sizes(config)
    pixels = read_pixels(config, Pixels(3, side_pixels=1024, patch_side=16))
    channels = config.integer("output_channels", default=256)
    width, tile = size.width, pixels.patches
    config.ignore("layer_norm_eps", "initializer_range", "model_type")
    if not config.flag("use_abs_pos", default=True):
        config.fail("use_abs_pos", "a tower without a table of positions has no memory model")
    if size.side % 4:
        config.fail("image_size", f"{size.side} patches of a side are no multiple of 4, as convolutions want them")
    return Vision(
        kind="got_ocr2:got_ocr2",
        hidden=width,
        blocks=_layers(config, size),
        values_per_patch=pixels.channels,
        patches_per_token=PATCHES_PER_TOKEN,
        token_width=outputs,
        stem_tensors=(
            *patch_convolution_tensors("patch_embed.projection", width, pixels),
            ParameterTensor("pos_embed", (1, size.side, size.side, width), "position"),
        ),
        closing_tensors=(
            ParameterTensor("neck.conv1.weight", (channels, width, 1, 1), "vision"),
            *norm_pair("neck.layer_norm1", channels),
            ParameterTensor("neck.conv2.weight", (channels, channels, 3, 3), "vision"),
            *norm_pair("neck.layer_norm2", channels),
        ),
        projector_tensors=(
            ParameterTensor("conv_upsampler1.weight", (2 * channels, channels, 3, 3), "projector"),
            ParameterTensor("conv_upsampler2.weight", (outputs, 2 * channels, 3, 3), "projector"),
            *linear("multimodal_projector", outputs, outputs, "projector", "none", bias=True),
        ),
        embedding_can_be_hooked=True,
        rows_per_tile=tile,
        tokens_per_tile=tile // PATCHES_PER_TOKEN,
        patch_side=pixels.patch_side,
        processor="processors:process_square",
        separator_tokens=2,
        heads=size.heads,
        path="vision_tower",
        layers_path="layers",
        projector_path="multi_modal_projector",
    )


def _sizes(config: ConfigReader) -> SamSizes:
    """Read the dimensions that all layers of SAM's encoder share."""
    width = config.integer("hidden_size", default=768)
    heads = config.integer("num_attention_heads", default=12)
    require_divisible_heads(config, width, heads)
    refuse_dropout(config, "attention_dropout")
    return SamSizes(
        width=width,
        heads=heads,
        inner=config.integer("mlp_dim", default=3072),
        side=square_side(config, "image_size", 1024) // square_side(config, "patch_size", 16),
        bias=config.flag("qkv_bias", default=True),
        relative=config.flag("use_rel_pos", default=True),
        activation=config.activation(default="gelu"),
    )


def _layers(config: ConfigReader, size: SamSizes) -> tuple[tuple[Block, int], ...]:
    """Build the layers of SAM's encoder as runs of (layer, how many).

    Attention is in windows, and over the whole picture in the layers of ``global_attn_indexes``.
    """
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    window = config.integer("window_size", default=14, minimum=0)
    indexes = config.integers("global_attn_indexes")
    global_layers = GLOBAL_LAYERS if indexes is None else indexes
    width, mlp = size.width, tower_mlp(size.width, size.inner, size.activation, ("mlp.lin1", "mlp.lin2"))
    norms = tuple(Norm("layernorm", width, bias=True, name=name) for name in ("layer_norm1", "layer_norm2"))

    def build_layer(side: int) -> Block:
        """Build one layer. ``side``: of its window, in patches; 0 for the whole picture."""
        mixer = _attention(size, side)
        return Block(mixer=mixer, mlp=mlp, input_norm=norms[0], mlp_norm=norms[1])

    return stack(tuple(0 if i in global_layers else window for i in range(depth)), build_layer)


def _attention(size: SamSizes, window: int) -> TowerAttention:
    """Build attention in windows of ``window`` patches a side; 0: over the whole picture."""
    head_dim, side = size.width // size.heads, window or size.side
    tensors = (
        *linear("attn.qkv", 3 * size.width, size.width, "attention", "none", bias=size.bias),
        *linear("attn.proj", size.width, size.width, "attention", "none", bias=True),
    )
    if size.relative:
        tables = ("attn.rel_pos_h", "attn.rel_pos_w")
        tensors += tuple(ParameterTensor(name, (2 * side - 1, head_dim), "position") for name in tables)
    return TowerAttention(
        heads=size.heads,
        head_dim=head_dim,
        kind="got_ocr2:sam_attention",
        tensors=tensors,
        bias=size.bias,
        window=window * window,
    )


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embed`` and add ``pos_embed``: [patches, hidden].

    ``require_grad``: make the output of ``patch_embed`` require a gradient, as ``enable_input_require_grads`` does.
    """
    weight, bias, table = vision.stem_tensors
    pixels = (
        hold_pixel_values(ctx, vision, ctx.tokens, ctx.setting.param_dtype)
        if ctx.setting.param_dtype != "fp32"
        else None
    )
    x, live = require_input_grads(
        patch_convolution(ctx, vision, ctx.tokens, weight, bias, pixels=pixels), require_grad=require_grad
    )
    return add_position_embedding(ctx, x, table, looked_up=False), live


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``neck`` and ``multi_modal_projector``: convolutions that make one image token of sixteen patches, and a
    matrix.
    """
    rows = x.shape[0]
    conv1, weight1, bias1, conv2, weight2, bias2 = vision.closing_tensors
    x = layer_norm(ctx, unbiased_convolution(ctx, x, conv1, rows), (weight1, bias1))
    x = layer_norm(ctx, unbiased_convolution(ctx, x, conv2, rows), (weight2, bias2))
    keep_in_variable(ctx, x)  # `last_hidden_state`
    halved, quartered, matrix, _ = vision.projector_tensors
    x = unbiased_convolution(ctx, x, halved, rows // 4)
    x = unbiased_convolution(ctx, x, quartered, rows // vision.patches_per_token)
    if ctx.setting.images > 1:
        x = copy(ctx.tape, x, "contiguous")
    return return_image_tokens(ctx, linear_layer(ctx, x, matrix, bias=True), joins=False)


def sam_attention(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute SAM's attention in windows: pad and copy the rows into windows, attend, and copy them back.

    ``window_partition``, ``attn`` and ``window_unpartition``. With one picture and no windows the qkv product is read
    as it lies; that of several pictures, or of windows, is copied.
    """
    pictures = max(1, ctx.setting.images)
    rows, side = x.shape[0], math.isqrt(x.shape[0] // pictures)
    window = math.isqrt(attention.window) if attention.window else side
    padded = round_up(side, window)
    if attention.window:
        padded_rows = permuted_copy(ctx, x, pictures * padded * padded)
        x.storage = None  # the windows take its name
        x = permuted_copy(ctx, padded_rows)
        del padded_rows
    out = _windowed_attention(ctx, attention, x, pictures * (padded // window) ** 2, window)
    if not attention.window:
        return out
    del x
    rows_in_order = permuted_copy(ctx, out)
    return (
        _unpad_windows(ctx, rows_in_order, rows, pictures * padded * side)
        if padded != side
        else permuted_copy(ctx, rows_in_order)
    )


def _unpad_windows(ctx: Context, x: Value, rows: int, column_padded_rows: int) -> Value:
    """Cut the padding off the windows' rows (``[:, :height, :width].contiguous()``): [rows, hidden].

    Backward pads with zeros: first the columns, to ``column_padded_rows`` rows, and then the rows.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    out = tape.value((rows, shape[1]), dtype, "without padding")
    return operator(
        tape, out, x, "slice backward", temporaries=[((column_padded_rows, shape[1]), dtype, "slice backward")]
    )


def _windowed_attention(ctx: Context, attention: TowerAttention, x: Value, windows: int, side: int) -> Value:
    """Compute attention within each of ``windows`` windows of ``side`` x ``side`` patches: [rows, width].

    The scores are [windows * heads, patches, patches], to which relative positions are added; their softmax is in fp32.
    """
    tape, head_dim = ctx.tape, attention.head_dim
    rows, groups = x.shape[0], windows * attention.heads
    qkv_tensor, output_tensor = (t for t in attention.tensors if t.linear)
    qkv = linear_layer(ctx, x, qkv_tensor, bias=attention.bias)
    del x
    shape = (groups, side * side, head_dim)
    q, k, v = tape.views(
        permuted_copy(ctx, qkv) if windows > 1 else head_view(tape, qkv, qkv.shape), shape, shape, shape
    )
    del qkv
    scores_shape = (groups, side * side, side * side)
    scores = kernels.batched(tape, scale(tape, q, "query * scale"), k, scores_shape, "attention scores")
    position_bias = None
    if any("rel_pos" in t.name for t in attention.tensors):
        position_bias = _relative_positions(ctx, attention, q, scores_shape, side, is_copied=windows > 1)
        scores = add(tape, scores, position_bias, "distances")
    probabilities = kernels.softmax(tape, scores, "fp32")
    weights = cast(tape, probabilities, q.dtype, "attention probabilities")
    del scores, probabilities
    ctx.unused_outputs.append(weights)  # `attn_weights` of the layer
    out = kernels.batched(tape, weights, v, shape, "attention output")
    out = permuted_copy(ctx, out.view(rows, attention.heads * head_dim))
    del position_bias
    return linear_layer(ctx, out, output_tensor, bias=True)


def _relative_positions(
    ctx: Context,
    attention: TowerAttention,
    query: Value,
    scores_shape: tuple[int, int, int],
    side: int,
    *,
    is_copied: bool,
) -> Value:
    """Compute the relative position bias of all pairs of patches (``get_decomposed_rel_pos``): ``scores_shape``.

    It sums products of queries with the rows of two tables, one per axis. Queries are copied for each product. If they
    were copied before (``is_copied``), those by columns already have the order that the second product needs. ``side``:
    patches along one axis.
    """
    tape = ctx.tape
    products: list[Value] = []
    for table in [t for t in attention.tensors if "rel_pos" in t.name]:
        table_rows = _relative_table(ctx, table, side)
        queries = query if is_copied and products else permuted_copy(ctx, query)
        products.append(kernels.batched(tape, queries, table_rows, (side, scores_shape[0] * side, side), table.name))
        del table_rows, queries
    dtype = products[0].dtype
    summed = tape.new(scores_shape, dtype, "distances of rows and columns")
    out = tape.value(scores_shape, dtype, "reshape_as")
    del summed
    return operator(tape, out, tuple(products), "sum")


def _relative_table(ctx: Context, table: ParameterTensor, side: int) -> Value:
    """Look up the table's row for each pair of positions along an axis (``get_rel_pos``): [side, side, head_dim].

    ``table``: [distances, head_dim], resized with ``interpolate``. ``side``: patches along the axis.
    """
    tape, shape = ctx.tape, table.shape
    parameter = ctx.parameter(table.name, shape)
    resized = tape.new(shape, parameter.dtype, "interpolate")
    out = tape.value((side, side, shape[1]), parameter.dtype, "rows of distances")
    del resized
    positions, dtype = tape.new((side, side), "int64", "distances"), parameter.dtype
    return operator(
        tape,
        out,
        tape.parameter(parameter),
        (shape, dtype, "interpolate backward"),
        saves=(positions,),
        temporaries=[(shape, dtype, "index backward")],
    )


FORWARDS = {
    "got_ocr2": TowerForward(stem, project, runs_layers_itself=True, wrapped_modules=()),
}
"""By name, the forward passes of a kind of tower."""
