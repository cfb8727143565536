"""Hunyuan VL: positions resized from a wide grid, two convolutions, learned tokens (modeling_hunyuan_vl.py).

Pictures go through the merger one after the other upstream, and all at once here: what is kept is the same.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, copy, unary
from memcheck.autograd.matrix import product
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Storage, Value, promote
from memcheck.frameworks.transformers.towers.convolutions import kept_input
from memcheck.frameworks.transformers.towers.qwen import features
from memcheck.frameworks.transformers.towers.tiles import convolve, plain
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``; no hook finds the patches."""
    weight, bias, table = vision.stem
    x = convolve(ctx, vision, ctx.tokens, weight, bias, outside=True)
    positions = grid_positions(ctx, table, ctx.tokens, x.dtype, spare=1)
    return add(ctx.tape, x, positions, "add positions"), []


def grid_positions(ctx: Context, table: ParameterTensor, rows: int, dtype: str, *, spare: int = 0) -> Value:
    """``interpolate_pos_encoding`` of every picture: the whole grid in fp32, resized by ``interpolate``, in the rows'
    dtype, repeated, put together. Each picture's gradient is one of the whole table. ``spare``: rows that are cut off.
    """
    tape, (places, width) = ctx.tape, table.shape[-2:]
    pictures = max(1, ctx.setting.pictures)
    each = -(-rows // pictures)
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    own, whole, learns = p.dtype, (places - spare, width), p.requires_grad
    repeated = []
    for _ in range(pictures):
        grid = tape.new(whole, "fp32", "position grid in fp32") if own != "fp32" else None
        resized = tape.new((each, width), "fp32", "interpolate")
        del grid
        narrow = tape.new((each, width), dtype, "to") if dtype != "fp32" else resized
        del resized
        repeated.append(tape.new((each, width), dtype, "repeat"))
        del narrow
    out = tape.value((rows, width), dtype, "cat pictures")
    repeated.clear()

    def run(grad: Storage) -> list[Storage | None]:
        total = None
        for _ in range(pictures if learns else 0):
            wide = tape.new((each, width), "fp32", "to backward")
            found = tape.new(whole, "fp32", "interpolate backward")
            del wide
            narrow = tape.new(whole, own, "to backward") if own != "fp32" else found
            del found
            sliced = tape.new(table.shape, own, "slice backward") if spare else narrow
            del narrow
            total = sliced if total is None or not tape.subclass else tape.new(table.shape, own, "add gradients")
            del sliced
        return [total]

    return tape.record(out, (tape.parameter(p),), run)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``patch_merger`` of every picture, the pictures put together, and once more by the model.

    The tower's output keeps its last rows (``last_hidden_state``) while the model's forward has it.
    """
    tape, pictures = ctx.tape, max(1, ctx.setting.pictures)
    before, first, first_bias, second, second_bias, newline, matrix, bias, begin, end, after = vision.projector
    tokens = ctx.setting.image_tokens or ctx.tokens // vision.merge + 3 * pictures
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))
    x = rms_norm_pieces(tape, x, ctx.parameter(before.name.removesuffix(".weight"), before.shape))
    dtype = x.dtype
    x = x.view(x.shape[0] // vision.merge, x.shape[1] * vision.merge)
    x = unary(tape, _convolved(ctx, x, first, first_bias), vision.activation)
    x = _convolved(ctx, x, second, second_bias)
    x = _joined(ctx, x, (newline,), tokens - 2 * pictures, promote(dtype, x.dtype))
    x = plain(ctx, x, matrix, bias=bool(bias))
    x = _joined(ctx, x, (begin, end), tokens, promote(dtype, x.dtype))
    x = rms_norm_pieces(tape, x, ctx.parameter(after.name.removesuffix(".weight"), after.shape))
    return features(ctx, copy(tape, x, "cat pictures"))


def _convolved(ctx: Context, x: Value, kernel: ParameterTensor, offset: ParameterTensor) -> Value:
    """A convolution whose stride is its kernel."""
    tape = ctx.tape
    weights = ctx.parameter(kernel.name.removesuffix(".weight"), kernel.shape)
    merging = tape.parameter(weights)
    merging = Value(merging.storage, (kernel.shape[0], x.shape[1]), merging.dtype, merging.origin)
    shift = tape.parameter(ctx.parameter(offset.name, offset.shape))
    return kept_input(ctx, x, product(tape, x, merging, kernel.name, shift), trained=weights.requires_grad)


def _joined(ctx: Context, x: Value, learned: tuple[ParameterTensor, ...], rows: int, dtype: str) -> Value:
    """``torch.cat`` of rows and learned ones, which are expanded; each of these gets a sum for its gradient."""
    tape = ctx.tape
    shape, width, stream, wants = x.shape, x.shape[1], x.dtype, x.origin is not None
    parameters = [ctx.parameter(t.name, t.shape) for t in learned]
    out = tape.value((rows, width), dtype, "cat learned rows")

    def run(grad: Storage) -> list[Storage | None]:
        narrowed = tape.new(shape, stream, "contiguous gradient") if wants else None
        return [narrowed, *(tape.new(p.shape, p.dtype, "sum") if p.requires_grad else None for p in parameters)]

    return tape.record(out, (x, *(tape.parameter(p) for p in parameters)), run)
