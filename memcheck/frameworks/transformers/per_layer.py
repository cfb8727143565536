"""Per-layer embeddings of Gemma 4: looked up once for all layers, multiplied into each layer's output.

Source: transformers 5.23 models/gemma4/modeling_gemma4.py (get_per_layer_inputs, project_per_layer_inputs,
Gemma4TextDecoderLayer.forward).

Gemma 3n's own tokens of pictures and sounds: every token is looked up in both of their tables, and most of what they
say is masked away.

Source: transformers 5.23 models/gemma3n/modeling_gemma3n.py (Gemma3nModel.forward, Gemma3nMultimodalEmbedder.forward).
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting, adapts
from memcheck.autograd.kernels import Weights, embedding, linear
from memcheck.autograd.modules import activation, normalise, rms_norm_pieces
from memcheck.autograd.operator import GRAD_UNCHANGED, add, cast, mul, operator, scale, where
from memcheck.autograd.tensor import Leaf, Parameter, Storage, Value
from memcheck.families.towers.forward_parts import masked_scatter
from memcheck.models.types import Block, Norm, ParameterTensor, PerLayer
from memcheck.models.vision import Embedder

PROJECTION = "per_layer_model_projection"
"""A linear layer outside the decoder layers: peft adapts it as it adapts theirs."""


def look_up(ctx: Context, per_layer: PerLayer, rows: int, x: Value, *, trained: bool) -> Value:
    """Compute Gemma 3n's per-layer inputs of all layers: rows of one table plus a normed projection of the embedding.

    ``x``: [tokens, hidden], returned unchanged. ``rows``: of the table. ``trained``: the table gets a gradient. The
    inputs, [tokens, layers * width], are saved until the first layer's backward. Their gradient is counted with the
    head, which runs backward first.
    """
    tape, setting = ctx.tape, ctx.setting
    dtype = x.dtype
    table = ctx.register(
        Parameter(
            "embed_tokens_per_layer", (rows, per_layer.total), setting.param_dtype, trained, has_grad=setting.has_grad
        )
    )
    looked_up = scale(tape, embedding(tape, table, (ctx.tokens,), dtype), "embedding scale")
    weights = Weights(ctx.parameter(PROJECTION, (per_layer.total, setting.hidden)))
    if setting.adapter is not None and adapts(setting.adapter, PROJECTION):
        weights = ctx.adapted(PROJECTION, weights, setting.adapter)
    projected = scale(tape, linear(tape, x, weights, PROJECTION), "projection scale")
    weight = ctx.parameter("per_layer_projection_norm.weight", (per_layer.width,))
    heads = projected.view(ctx.tokens * (per_layer.total // per_layer.width), per_layer.width)
    del projected
    normed = rms_norm_pieces(tape, heads, weight, weight_in_fp32=True).view(ctx.tokens, per_layer.total)
    del heads
    inputs = scale(tape, add(tape, normed, looked_up, "per-layer inputs"), "per-layer scale")
    del normed, looked_up

    def inputs_backward(grad: Storage) -> list[Storage | None]:
        """Pass the gradient on to ``x``; that of the inputs is counted with the head, and has no bytes here."""
        return [grad, tape.new((0,), dtype, "gradient of per-layer inputs")]

    return tape.record(Value(x.storage, x.shape, dtype), (x, inputs), inputs_backward, saves=(inputs.storage,))


def with_per_layer_input(ctx: Context, block: Block, x: Value) -> Value:
    """``x + norm(projection(act(gate(x)) * per_layer_input))``; a slice's gradient is as wide as all layers' inputs."""
    return add(ctx.tape, x, per_layer_part(ctx, block, x), "residual") if isinstance(block.extension, PerLayer) else x


def per_layer_part(ctx: Context, block: Block, x: Value) -> Value:
    """Compute ``norm(projection(act(gate(x)) * per_layer_input))``, [tokens, hidden].

    The layer's input is a slice, and its gradient is as wide as the inputs of all layers.
    """
    tape, extension = ctx.tape, block.extension
    if not isinstance(extension, PerLayer):
        return x
    tensors = {t.name.removesuffix(".weight"): t for t in block.extra_tensors}
    gate, projection = tensors["per_layer_input_gate"], tensors["per_layer_projection"]
    hidden_states = linear(tape, x, ctx.replicated(gate), gate.name)
    hidden_states = activation(tape, hidden_states, extension.activation)
    all_shape, layer_shape, dtype = (
        (ctx.tokens, extension.total),
        (ctx.tokens, extension.width),
        ctx.setting.param_dtype,
    )
    all_inputs = Value(None, all_shape, dtype, Leaf())
    layer_input = operator(
        tape, Value(None, layer_shape, dtype), all_inputs, (all_shape, dtype, "slice of per-layer inputs")
    )
    hidden_states = mul(tape, hidden_states, layer_input)
    hidden_states = linear(tape, hidden_states, ctx.replicated(projection), projection.name)
    name = "post_per_layer_input_norm"
    return normalise(ctx, Norm("rmsnorm-fp32-weight", x.shape[-1], name=name), hidden_states, name)


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
        if pictures and embedder.image_tokens:
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
    tape, shape = ctx.tape, (pictures * embedder.image_tokens, embedder.width)
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
    positions = pictures * (embedder.side_pixels // STRIDE) ** 2
    wide = "fp32" if ctx.tape.autocast else dtype  # pow is on autocast's fp32 list
    convolutions = tuple(tape.new((positions, width), dtype, "convolution") for width in (FIRST, FIRST, WIDEST))
    norm_temporaries = tuple(tape.new((positions, WIDEST), wide, "rms_norm2d") for _ in range(2))
    del convolutions, norm_temporaries


def _held(ctx: Context, rows: Value, ids: Storage) -> Value:
    """Backward adds the gradient to the rows of those tokens."""
    return operator(ctx.tape, Value(rows.storage, rows.shape, rows.dtype), rows, GRAD_UNCHANGED, saves=(ids,))
