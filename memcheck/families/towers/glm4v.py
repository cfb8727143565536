"""GLM-4.1V, GLM-4.5V, GLM-4.6V and GLM-OCR: rows of all pictures, a convolution that merges four, a gated merger.

modeling_glm4v.py, modeling_glm4v_moe.py, modeling_glm_ocr.py of transformers 5.23.

GLM-OCR: a norm after the layers, a convolution that merges four patches, a gated merger (modeling_glm_ocr.py).

GLM-4.1V and its successors: a norm after the patches, positions sampled from a grid (modeling_glm4v.py).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import product
from memcheck.autograd.modules import activation, fused_norm, rms_norm_pieces
from memcheck.autograd.operator import add, cast, mul, operator, unary
from memcheck.autograd.tensor import Storage, Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import TowerForward, norm_pair, refuse_dropout, square_side
from memcheck.families.towers.forward_parts import (
    cat_image_tokens,
    keep_in_variable,
    linear_layer,
    save_frozen_convolution_input,
)
from memcheck.families.towers.qwen import (
    channels,
    embedded_patches,
    heads_of,
    outputs_of,
    packed_block,
    packed_mlp,
    patch_embedding,
    rotary_tables,
)
from memcheck.models.decoder import linear, norm_tensors
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record

TOKENS = ("image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id")
GATED = ("gate_proj", "up_proj", "down_proj")


class TowerSizes(Record):
    """Dimensions of a GLM tower."""

    width: int
    heads: int
    inner: int
    """Elements between the matrices of a layer's feed-forward network."""
    merger: int
    """Elements between the matrices of the merger."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``glm4v``, ``glm4v_moe`` and ``glm46v``: positions interpolated from a table. Layers are as
    wide inside as an image token; ``intermediate_size`` is the merger's.
    """
    outputs = outputs_of(config, model.language.hidden_size)
    inner = config.integer("intermediate_size", default=13696)
    bias = config.flag("attention_bias")
    width = config.integer("hidden_size", default=1536)
    sizes = TowerSizes(width=width, heads=heads_of(config, width, 12), inner=outputs, merger=inner)
    tower = _tower(config, model, sizes, bias=bias, is_ocr=False)
    image_size, patch = square_side(config, "image_size", 336), tower.patch_side
    table = ParameterTensor(
        "embeddings.position_embedding.weight", ((image_size // patch) ** 2, tower.hidden), "position"
    )
    norm = ParameterTensor("post_conv_layernorm.weight", (tower.hidden,), "norm")
    return tower._replace(stem_tensors=(*tower.stem_tensors, norm, table))


def read_ocr(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``glm_ocr``: queries and keys are normed, no positions but rotations; the merger is
    ``in_channels`` as wide.
    """
    outputs = outputs_of(config, model.language.hidden_size)
    inner = config.integer("intermediate_size", default=4096)
    merger = outputs * config.integer("in_channels", default=3)
    config.ignore("image_size")
    bias = config.flag("attention_bias", default=True)
    width = config.integer("hidden_size", default=1024)
    sizes = TowerSizes(width=width, heads=heads_of(config, width, 16), inner=inner, merger=merger)
    return _tower(config, model, sizes, bias=bias, is_ocr=True)


def _attention(width: int, heads: int, *, bias: bool, is_ocr: bool) -> TowerAttention:
    """Build attention with one matrix for q, k and v. ``bias``, ``is_ocr``: as in :func:`_tower`."""
    head_dim = width // heads
    query_norm, key_norm = (Norm("rmsnorm", head_dim, name=f"attn.{name}") for name in ("q_norm", "k_norm"))
    tensors = linear("attn.qkv", 3 * width, width, "attention", "column", bias=bias)
    tensors += linear("attn.proj", width, width, "attention", "row", bias=is_ocr and bias)
    attention = TowerAttention(heads, head_dim, kind="packed", tensors=tensors, bias=bias)
    if not is_ocr:
        return attention
    tensors += norm_tensors(query_norm) + norm_tensors(key_norm)
    return attention._replace(tensors=tensors, query_norm=query_norm, key_norm=key_norm)


def _merger_tensors(inner: int, outputs: int, *, peft_finds_linear: bool) -> tuple[ParameterTensor, ...]:
    """List the matrices of the merger's gated network. ``peft_finds_linear``: adapters on linear layers reach them."""
    tensors: tuple[ParameterTensor, ...] = ()
    for name, rows, columns in (
        ("gate_proj", inner, outputs),
        ("up_proj", inner, outputs),
        ("down_proj", outputs, inner),
    ):
        tensors += linear(f"merger.{name}", rows, columns, "projector", "none")
    return tuple(t._replace(linear=peft_finds_linear) for t in tensors)


def _tower(
    config: ConfigReader,
    model: TowerContext,
    sizes: TowerSizes,
    *,
    bias: bool,
    is_ocr: bool,
) -> Vision:
    """Read the layers and merger that GLM-4.1V and GLM-OCR share.

    ``bias``: of the matrix of q, k and v. ``is_ocr``: GLM-OCR's tower, whose queries and keys are normed, and whose
    other matrices have the same biases.
    """
    model.outer.ignore(*TOKENS)
    outputs, width, heads = model.language.hidden_size, sizes.width, sizes.heads
    refuse_dropout(config, "attention_dropout")
    config.ignore("rms_norm_eps", "initializer_range")
    activation = config.activation(default="silu")
    # in models with stacked experts peft maps the names of these matrices to the experts, and to nothing else
    peft_finds_linear = model.outer.model_type != "glm4v_moe"
    mlp = packed_mlp(width, sizes.inner, activation, GATED, bias=is_ocr and bias)._replace(adaptable=peft_finds_linear)
    attention = _attention(width, heads, bias=bias, is_ocr=is_ocr)
    block = packed_block(width, heads, mlp, "rmsnorm", attention=attention)
    depth = config.integer("depth", default=24, maximum=MAX_LAYERS)
    merge = config.integer("spatial_merge_size", default=2)
    return Vision(
        kind="glm4v:glm_ocr" if is_ocr else "glm4v:glm4v",
        layers_path="blocks",
        hidden=width,
        blocks=((block, depth),),
        values_per_patch=channels(config, 14),
        patches_per_token=merge * merge,
        token_width=outputs,
        stem_tensors=patch_embedding(config, width, 14, bias=True),
        closing_tensors=(ParameterTensor("post_layernorm.weight", (width,), "norm"),),
        projector_tensors=(
            ParameterTensor("downsample.weight", (outputs, width, merge, merge), "projector"),
            ParameterTensor("downsample.bias", (outputs,), "projector"),
            *linear("merger.proj", outputs, outputs, "projector", "none"),
            *norm_pair("merger.post_projection_norm", outputs),
            *_merger_tensors(sizes.merger, outputs, peft_finds_linear=peft_finds_linear),
        ),
        embedding_can_be_hooked=False,
        # under autocast, a norm after the patches multiplies by fp32 weights; GLM-OCR has no such norm
        residual_in_autocast_dtype=is_ocr,
        patch_side=square_side(config, "patch_size", 14),
        processor="processors:process_glm",
        separator_tokens=2,
        returns_image_tokens=False,
        heads=heads,
        activation=activation,
    )


def glm_ocr_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embed``, and the rotary tables. No input-gradient hook finds this module."""
    return embedded_patches(ctx, vision), rotary_tables(ctx, vision)


def glm_ocr_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm``, ``downsample`` (merges four patches) and ``merger``: [image tokens, text hidden].

    GlmOcrVisionPatchMerger.forward. The tower's output keeps the result of ``downsample`` (``last_hidden_state``).
    """
    tape = ctx.tape
    norm = vision.closing_tensors[0]
    kernel, kernel_bias, matrix, weight, bias, gate, up, down = vision.projector_tensors
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape))
    x = x.view(x.shape[0] // vision.patches_per_token, x.shape[1] * vision.patches_per_token)
    kernel_parameter = ctx.parameter(kernel.name.removesuffix(".weight"), kernel.shape)
    kernel_matrix = tape.parameter(kernel_parameter)
    kernel_matrix = Value(
        kernel_matrix.storage, (kernel.shape[0], x.shape[1]), kernel_matrix.dtype, kernel_matrix.origin
    )
    bias_value = tape.parameter(ctx.parameter(kernel_bias.name, kernel_bias.shape))
    x = save_frozen_convolution_input(
        ctx, x, product(tape, x, kernel_matrix, "downsample", bias_value), trained=kernel_parameter.requires_grad
    )
    keep_in_variable(ctx, x)
    x = linear_layer(ctx, x, matrix)
    x = fused_norm(tape, x, ctx.parameter(weight.name, weight.shape), ctx.parameter(bias.name, bias.shape), "layernorm")
    x = unary(tape, x, "gelu")
    activated = activation(tape, linear_layer(ctx, x, gate), vision.activation)
    gated = mul(tape, activated, linear_layer(ctx, x, up))
    del x, activated
    return cat_image_tokens(ctx, linear_layer(ctx, gated, down))


def glm4v_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embed``, ``post_conv_layernorm`` and ``embeddings``, and the rotary tables. No hook finds these
    modules.
    """
    tape = ctx.tape
    *_, norm, table = vision.stem_tensors
    x = embedded_patches(ctx, vision)
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape))
    tables = rotary_tables(ctx, vision)
    return _with_positions(ctx, x, table), tables


def _with_positions(ctx: Context, x: Value, table: ParameterTensor) -> Value:
    """Add positions that ``grid_sample`` reads from an fp32 copy of the table (Glm4vVisionEmbeddings.forward).

    Every intermediate is a variable of the function until the sum is made.
    """
    tape = ctx.tape
    parameter = tape.parameter(ctx.parameter(table.name.removesuffix(".weight"), table.shape))
    fp32_table = cast(tape, parameter, "fp32")
    grid = tape.new((x.shape[0], 2), "fp32", "sampling grid")
    sampled = _sampled(ctx, fp32_table, grid, x.shape)
    positions = cast(tape, sampled, parameter.dtype)
    return add(tape, x, positions, "add positions")


def _sampled(ctx: Context, table: Value, grid: Storage, shape: tuple[int, ...]) -> Value:
    """Compute ``F.grid_sample`` of the position table: [patches, hidden].

    Saves the table and the grid; backward computes a gradient of each.
    """
    out = ctx.tape.value(shape, table.dtype, "grid_sample")
    grid_gradient = (grid.shape, table.dtype, "grid_sample backward of the grid")
    return operator(ctx.tape, out, table, "grid_sample backward", saves=(table, grid), later=[grid_gradient])


FORWARDS = {
    "glm4v": TowerForward(glm4v_stem, glm_ocr_project, runs_layers_itself=True),
    "glm_ocr": TowerForward(glm_ocr_stem, glm_ocr_project, runs_layers_itself=True),
}
