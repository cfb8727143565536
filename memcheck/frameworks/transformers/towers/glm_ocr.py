"""GLM-OCR: a norm after the layers, a convolution that merges four patches, a gated merger (modeling_glm_ocr.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import mul, unary
from memcheck.autograd.matrix import product
from memcheck.autograd.modules import activation
from memcheck.autograd.norm import fused_norm, rms_norm_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.convolutions import kept_input
from memcheck.frameworks.transformers.towers.qwen import features, patch_embedding, rotary_tables
from memcheck.frameworks.transformers.towers.tiles import plain
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed`` and the rotary tables; no hook finds them."""
    return patch_embedding(ctx, vision), rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, ``downsample``, whose stride is its kernel, and ``merger`` (GlmOcrVisionPatchMerger.forward).

    The tower's output keeps what ``downsample`` made (``last_hidden_state``) while the model's forward has it.
    """
    tape = ctx.tape
    norm = vision.closing[0]
    kernel, offset, matrix, weight, bias, gate, up, down = vision.projector
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape))
    x = x.view(x.shape[0] // vision.merge, x.shape[1] * vision.merge)
    weights = ctx.parameter(kernel.name.removesuffix(".weight"), kernel.shape)
    merging = tape.parameter(weights)
    merging = Value(merging.storage, (kernel.shape[0], x.shape[1]), merging.dtype, merging.origin)
    shift = tape.parameter(ctx.parameter(offset.name, offset.shape))
    x = kept_input(ctx, x, product(tape, x, merging, "downsample", shift), trained=weights.requires_grad)
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))
    x = plain(ctx, x, matrix)
    x = fused_norm(tape, x, ctx.parameter(weight.name, weight.shape), ctx.parameter(bias.name, bias.shape), "layernorm")
    x = unary(tape, x, "gelu")
    acted = activation(tape, plain(ctx, x, gate), vision.activation)
    gated = mul(tape, acted, plain(ctx, x, up))
    del x, acted
    return features(ctx, plain(ctx, gated, down))
