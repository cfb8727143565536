"""VideoLLaMA 3: SigLIP's patches of all pictures as rows, followed by two matrices (modeling_video_llama_3.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import features, hooked, rotary_tables
from memcheck.frameworks.transformers.towers.tiles import convolve, layer_norm, two_matrices
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``. The hook is on ``patch_embedding``."""
    weight, bias = vision.stem
    x, held = hooked(convolve(ctx, vision, ctx.tokens, weight, bias), leaf=leaf)
    return x, held + rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, ``pixel_unshuffle``, which copies and resizes every picture, and ``projector``."""
    tape = ctx.tape
    x = copy(tape, layer_norm(ctx, x, vision.closing), "interpolate")
    x = copy(tape, x, "cat pictures")
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # the tower's output
    return features(ctx, two_matrices(ctx, vision, x, vision.projector))
