"""Gemma 3n's own tokens of pictures and sounds: every token is looked up in both of their tables, and most of what they
say is masked away.

Source: transformers 5.23 models/gemma3n/modeling_gemma3n.py (Gemma3nModel.forward, Gemma3nMultimodalEmbedder.forward).
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.kernels import Weights, embedding, linear
from memcheck.autograd.modules import normalise, rms_norm_pieces
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, operator, where
from memcheck.autograd.tensor import Storage, Value
from memcheck.families.towers.forward_parts import masked_scatter
from memcheck.models.types import Norm, ParameterTensor
from memcheck.models.vision import Embedder

NORM = "rmsnorm-fp32-weight"
STRIDE, FIRST, WIDEST = 4, 128, 768
"""Pixels per place after the tower's first stage, channels there, and inside the block that follows."""


def through_embedders(
    ctx: Context, embedders: tuple[Embedder, ...], setting: Setting, pictures: int, x: Value
) -> Value:
    """Replace the embeddings of image and audio tokens: ``torch.where(mask, embed(ids), inputs_embeds)`` per embedder.

    ``x``: the embedded text, [tokens, hidden]; so is what is returned. ``pictures``: number of images, whose features
    are then scattered into it. ``setting``: of the embedders. Source: modeling_gemma3n.py.
    """
    tape, (tokens, hidden), stream = ctx.tape, x.shape, x.dtype
    embedder_ctx = Context(tape, setting)
    matrices: dict[str, Weights] = {}
    for embedder in embedders:
        mask, ids = tape.new((tokens,), "bool", "mask of tokens"), tape.new((tokens,), "int64", "tokens of the table")
        table = embedder_ctx.parameter(f"{embedder.name}.embedding", (embedder.rows, embedder.width))
        rows = _held(ctx, embedding(tape, table, (tokens,), setting.param_dtype), ids)
        name = f"{embedder.name}.hard_embedding_norm"
        rows = normalise(embedder_ctx, Norm(NORM, embedder.width, name=name), rows, name)
        matrices[embedder.name] = weights = embedder_ctx.replicated(_matrix(embedder, hidden))
        rows = rms_norm_pieces(tape, linear(tape, rows, weights, embedder.name), None)
        if rows.dtype != stream:
            rows = cast(tape, rows, stream)
        ctx.extra_outputs.append(Value(rows.storage, rows.shape, rows.dtype))
        x = where(tape, mask, rows, x)
        del rows
    ctx.parameters += embedder_ctx.parameters
    for embedder in embedders:
        if pictures and embedder.tokens:
            x = _with_pictures(ctx, embedder, Context(tape, setting), matrices[embedder.name], pictures, x)
    return x


def _matrix(embedder: Embedder, hidden: int) -> ParameterTensor:
    return ParameterTensor(
        f"{embedder.name}.embedding_projection.weight", (hidden, embedder.width), "projector", linear=True
    )


def _with_pictures(
    ctx: Context, embedder: Embedder, inside: Context, matrix: Weights, pictures: int, x: Value
) -> Value:
    """Run ``get_image_features`` after a frozen vision tower, and scatter the image features into ``x``.

    ``x``: the embedded text, [tokens, hidden]; so is what is returned. ``inside``: the context of the embedder, with
    its ``matrix``. The features are [pictures * tokens per picture, hidden]. Variables hold the input and the output of
    the scatter.
    """
    tape, shape = ctx.tape, (pictures * embedder.tokens, embedder.width)
    _tower_peak(ctx, embedder, pictures)
    rows = tape.value(shape, tape.autocast or inside.setting.param_dtype, "last hidden state of the tower")
    ctx.extra_outputs.append(Value(rows.storage, rows.shape, rows.dtype))
    norm = inside.parameter(f"{embedder.name}.soft_embedding_norm", (embedder.width,))
    normed = rms_norm_pieces(tape, rows, norm, weight_in_fp32=True)
    del rows
    features = rms_norm_pieces(tape, linear(tape, normed, matrix, embedder.name), None)
    del normed
    ctx.extra_outputs.append(Value(features.storage, features.shape, features.dtype))
    if features.dtype != x.dtype:
        features = cast(tape, features, x.dtype)
        ctx.extra_outputs.append(Value(features.storage, features.shape, features.dtype))
    return masked_scatter(ctx, x, features)


def _tower_peak(ctx: Context, embedder: Embedder, pictures: int) -> None:
    """Allocate and free the tensors of the vision tower's highest moment, on ``pictures`` images without a graph.

    That is an RMSNorm over 768 channels in the first block of the second stage, at a quarter of the image's width and
    height. Live are three outputs of convolutions and two temporaries of the norm. Source: timm 1.0
    models/mobilenetv5.py, layers/fast_norm.py.
    """
    tape, dtype = ctx.tape, ctx.tape.autocast or ctx.setting.param_dtype
    positions = pictures * (embedder.side // STRIDE) ** 2
    wide = "fp32" if ctx.tape.autocast else dtype  # pow is on autocast's fp32 list
    convolutions = tuple(tape.new((positions, width), dtype, "convolution") for width in (FIRST, FIRST, WIDEST))
    norm_temporaries = tuple(tape.new((positions, WIDEST), wide, "rms_norm2d") for _ in range(2))
    del convolutions, norm_temporaries


def _held(ctx: Context, rows: Value, ids: Storage) -> Value:
    """Backward adds the gradient to the rows of those tokens."""
    return operator(ctx.tape, Value(rows.storage, rows.shape, rows.dtype), rows, GRAD_UNCHANGED, saves=(ids,))
