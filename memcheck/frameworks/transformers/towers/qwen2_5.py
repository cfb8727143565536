"""Qwen2.5-VL: rows in the order of their windows, an RMSNorm in the merger, image tokens put back in order.

modeling_qwen2_5_vl.py of transformers 5.23, Qwen2_5_VisionTransformerPretrainedModel.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.indexing import index
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import features, hooked, merge, patch_embedding, rotary_tables
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed``, and rows and rotary tables picked by ``window_index``."""
    x, held = hooked(patch_embedding(ctx, vision), leaf=leaf)
    order = ctx.tape.new((ctx.tokens // vision.merge,), "int64", "window index")
    x = index(ctx.tape, x, order, x.shape, "window order")
    return x, held + rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``merger``, and ``merged_hidden_states[reverse_indices, :]``."""
    norm = vision.projector[0]
    x = rms_norm_pieces(ctx.tape, x, ctx.parameter(norm.name, norm.shape))
    merged = merge(ctx, vision, x, vision.projector[1:])
    del x
    order = ctx.tape.new(merged.shape[:1], "int64", "reverse index")
    return features(ctx, index(ctx.tape, merged, order, merged.shape, "picture order"))
