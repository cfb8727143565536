"""SAM's attention: windows of a padded picture, and distances of rows and columns in the scores (modeling_got_ocr2.py).

Whatever attention a plan asks for, its modules compute the scores themselves.
"""

from __future__ import annotations

import math

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, scale
from memcheck.autograd.indexing import head_view
from memcheck.autograd.matrix import linear
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.convolutions import laid_out
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import TowerAttention


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
    qkv = linear(tape, x, ctx.weights(first, a.bias), first.name)
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
    return linear(tape, out, ctx.weights(last, True), last.name)


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
    dtype, shapes = products[0].dtype, [(p.shape, p.dtype) if p.origin is not None else None for p in products]
    summed = tape.new(square, dtype, "distances of rows and columns")
    out = tape.value(square, dtype, "reshape_as")
    del summed

    def run(grad: Storage) -> list[Storage | None]:
        return [tape.new(*s, "sum") if s else None for s in shapes]

    return tape.record(out, tuple(products), run)


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
