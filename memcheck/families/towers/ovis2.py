"""Ovis 2: a tower whose rows become probabilities of visual words, and a table of these words (modeling_ovis2.py).

Ovis 2: probabilities of visual words, by which the rows of a table of them are summed (modeling_ovis2.py).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import product, softmax
from memcheck.autograd.modules import rms_norm_pieces
from memcheck.autograd.operator import GRAD_UNCHANGED, copy, operator
from memcheck.autograd.tensor import Value, ceil_div
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    LayerNames,
    LayerSizes,
    Pixels,
    TowerForward,
    norm_pair,
    patch_convolution_tensors,
    read_layer_sizes,
    read_pixels,
    tower_layer,
    tower_mlp,
)
from memcheck.families.towers.attention import separate_attention
from memcheck.families.towers.forward_parts import (
    add_position_embedding,
    keep_in_variable,
    layer_norm,
    linear_layer,
    patch_convolution,
    require_input_grads,
    return_image_tokens,
)
from memcheck.models.decoder import linear
from memcheck.models.module_types import CopiedInputMlp
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

NAMES = LayerNames(
    queries="attention.q_proj",
    keys="attention.k_proj",
    values="attention.v_proj",
    output="attention.out_proj",
    norms=("rms_norm1", "rms_norm2"),
    mlp=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
)


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: ovis2``: a tower whose patches become probabilities over visual words, which
    weight an embedding table.
    """
    outer, outputs = model.outer, model.language.hidden_size
    outer.ignore("visual_indicator_token_ids", "vocab_size")
    if outer.integer("hidden_size", default=1536) != outputs:
        outer.fail("hidden_size", f"hidden_size is the width of the visual words, the language model's is {outputs}")
    size = read_layer_sizes(config, LayerSizes(width=1024, heads=8, inner=2816, depth=24))
    pixels, width = read_pixels(config, Pixels(3, side_pixels=224, patch_side=14)), size.width
    config.ignore("model_type", "rms_norm_eps", "initializer_range")
    config.dropout("attention_dropout")
    for key in ("qkv_bias", "mlp_bias"):
        config.refuse(key, f"{key}: true has no memory model", "it is false in released files")
    if config.text("tokenize_function", default="softmax") != "softmax":
        config.fail("tokenize_function", "only softmax has a memory model", "it is that of released files")
    mlp = CopiedInputMlp(*tower_mlp(width, size.inner, config.activation(default="silu"), NAMES.mlp, bias=False))
    block = tower_layer(width, size.heads, mlp, "ovis2:copied_rows", NAMES, bias=False, norm="rmsnorm")
    stride = config.integer("hidden_stride", default=1)
    embedding = "transformer.embeddings."
    return Vision(
        kind="ovis2:ovis2",
        hidden=width,
        blocks=((block, size.depth),),
        values_per_patch=pixels.channels,
        patches_per_token=stride * stride,
        token_width=outputs,
        stem_tensors=(
            *patch_convolution_tensors(embedding + "patch_embedding", width, pixels),
            ParameterTensor(embedding + "position_embedding.weight", (pixels.patches, width), "position"),
            ParameterTensor(embedding + "rms_norm.weight", (width,), "norm"),
        ),
        projector_tensors=_visual_words(config, width * stride * stride, outputs),
        embedding_can_be_hooked=False,
        closing_tensors=(ParameterTensor("transformer.rms_norm.weight", (width,), "norm"),),
        rows_per_tile=pixels.patches,
        tokens_per_tile=ceil_div(pixels.side_pixels // pixels.patch_side, stride) ** 2,
        patch_side=pixels.patch_side,
        separator_tokens=2,
        heads=size.heads,
        path="vision_tower",
        layers_path="transformer.encoder.layers",
        projector_path="vision_tower",
    )


def _visual_words(config: ConfigReader, width: int, outputs: int) -> tuple[ParameterTensor, ...]:
    """List the tensors that make probabilities of visual words of ``width`` elements, and the words' own table.

    ``outputs``: width of an image token. Indicator tokens mark where a picture begins and ends; no patch becomes one.
    """
    vocab = config.integer("vocab_size", default=16384)
    indicator_tokens = config.integer("num_visual_indicator_tokens", default=5)
    if indicator_tokens >= vocab:
        config.fail("num_visual_indicator_tokens", f"{indicator_tokens} of {vocab} words leave none for pictures")
    return (
        *linear("head_linear", vocab - indicator_tokens, width, "projector", "none"),
        *norm_pair("head_norm", vocab - indicator_tokens),
        ParameterTensor("visual_embeddings_table.weight", (vocab, outputs), "projector"),
    )


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings``: patches, an RMSNorm and learned positions, [patches, hidden].

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    weight, bias, table, norm = vision.stem_tensors
    x = patch_convolution(ctx, vision, ctx.tokens, weight, bias)
    x = rms_norm_pieces(ctx.tape, x, ctx.parameter(norm.name, norm.shape))
    x = add_position_embedding(ctx, x, table)
    return require_input_grads(x, require_grad=require_grad)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute the probabilities of visual words, and the sum of their table rows that these weigh.

    The last norm, ``head_linear``, ``head_norm``, a softmax, and ``visual_embeddings_table``: [image tokens, text
    hidden].
    """
    tape, norm = ctx.tape, vision.closing_tensors[0]
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape))
    head, *norms, table = vision.projector_tensors
    tokens = ctx.setting.image_tokens or x.shape[0] // vision.patches_per_token
    if vision.patches_per_token > 1:
        x = _padded(ctx, x, (tokens * vision.patches_per_token, x.shape[1]))
        x = copy(tape, x, "permute").view(tokens, vision.hidden * vision.patches_per_token)
    keep_in_variable(ctx, x)  # `last_hidden_state`
    logits = layer_norm(ctx, linear_layer(ctx, x, head), tuple(norms))
    del x
    probabilities = softmax(tape, logits, "fp32" if tape.autocast else None)  # on autocast's fp32 list
    del logits
    visual_tokens = _append_indicator_zeros(ctx, probabilities, table.shape[0])
    del probabilities
    parameter = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    weight = tape.parameter(parameter)
    matrix = Value(weight.storage, parameter.shape[::-1], weight.dtype, weight.origin)  # `visual_tokens @ weight`
    image_tokens = product(tape, visual_tokens, matrix, table.name)
    del visual_tokens
    return return_image_tokens(ctx, _with_indicator_embeddings(ctx, image_tokens, weight), joins=False)


def _with_indicator_embeddings(ctx: Context, x: Value, weight: Value) -> Value:
    """Look up ``visual_embeddings_table(visual_indicator)``, rows of the table that the image tokens are made with.

    They are written after the scatter into the places of the indicator tokens, so the table's gradient is a sum of two.
    """
    tape, table_shape, dtype = ctx.tape, weight.shape, weight.dtype
    indicator_shape = (8, table_shape[1])
    indicators = operator(tape, tape.value(indicator_shape, dtype, "marks"), weight, "embedding backward")
    keep_in_variable(ctx, indicators)
    return operator(
        tape,
        Value(x.storage, x.shape, x.dtype),
        (x, indicators),
        [GRAD_UNCHANGED, (indicator_shape, dtype, "index_put backward")],
    )


def _padded(ctx: Context, x: Value, shape: tuple[int, int]) -> Value:
    """Pad to a whole number of strides with ``F.pad``, which copies even if it adds nothing."""
    tape = ctx.tape
    return operator(tape, tape.value(shape, x.dtype, "pad"), x, "pad backward")


def _append_indicator_zeros(ctx: Context, x: Value, visual_words: int) -> Value:
    """Concatenate zeros to the visual words' probabilities: [rows, visual_words].

    They belong to the words that mark where a picture begins and ends.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    zeros = tape.new((shape[0], visual_words - shape[1]), dtype, "zeros")
    out = tape.value((shape[0], visual_words), dtype, "cat marks")
    del zeros
    return operator(tape, out, x, "narrow")


def copied_rows(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Ovis 2: patches that lie apart in memory stay so through sums, and a product without a bias copies its rows."""
    return separate_attention(ctx, attention, x, copied=True)


FORWARDS = {
    "ovis2": TowerForward(stem, project, wrapped_modules=("attention",)),
}
"""By name, the forward passes of a kind of tower."""
