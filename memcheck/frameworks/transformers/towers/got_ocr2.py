"""GOT-OCR 2: SAM's encoder, a neck of convolutions, and two more that halve the sides (modeling_got_ocr2.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.convolutions import convolution
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import convolve, given_out, layer_norm, picked, plain, with_positions
from memcheck.models.vision import Vision


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
    return given_out(ctx, plain(ctx, x, matrix, bias=True), joins=False)
