"""Llama 3.2 Vision: four tiles of each picture in one sequence, local layers, gated global ones, earlier layers' rows.

modeling_mllama.py of transformers 5.23. Pictures of fewer tiles are padded to as many, and each tile's rows to a
multiple of eight.

Llama 3.2 Vision's tower: tables for each grid of tiles, gates, padded rows, and a mask of all tiles of a picture.

modeling_mllama.py of transformers 5.23, MllamaVisionModel.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value, promote, round_up
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    LayerNames,
    LayerSizes,
    Limits,
    Pixels,
    ProcessedPicture,
    TowerForward,
    no_clips,
    no_limits,
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
    prepend_class_token,
    require_input_grads,
)
from memcheck.models.decoder import linear
from memcheck.models.families.mllama import crossing_layers
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import Between, CrossReading, TowerAttention, Vision

ALIGNMENT = 8
"""Rows of a tile are padded to a multiple of it."""
RATIOS = 8
"""Grids of up to four tiles: ``supported_aspect_ratios`` of the class."""
NAMES = LayerNames(output="self_attn.o_proj", norms=("input_layernorm", "post_attention_layernorm"))


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: mllama``: a tower over tiles, with global layers after it, whose rows the text
    reads in cross-attention.
    """
    size = read_layer_sizes(
        config, LayerSizes(width=1280, heads=16, inner=5120, depth=32), ("attention_heads", "num_attention_heads")
    )
    global_layers = config.integer("num_global_layers", default=8, maximum=MAX_LAYERS)
    pixels = read_pixels(config, Pixels(3, side_pixels=448, patch_side=14))
    tiles = config.integer("max_num_tiles", default=4)
    gathered = _gathered_layers(config, size)
    features, outputs = (len(gathered) + 1) * size.width, model.language.hidden_size
    config.expect("vision_output_dim", features, f"{len(gathered)} earlier layers and the last have {features}")
    config.ignore("initializer_range", "norm_eps")
    rows = pixels.patches + 1  # of a tile, class token included
    padded_rows = round_up(rows, ALIGNMENT)
    layer = _layer(size, config.activation(default="gelu"))
    gates = tuple(ParameterTensor(name, (1,), "vision") for name in ("gate_attn", "gate_ffn"))
    before_layers, between_layers = _tensors_around_layers(config, size.width, pixels, tiles)
    return Vision(
        kind="mllama:mllama",
        hidden=size.width,
        blocks=(
            (layer, size.depth),
            (layer._replace(extra_tensors=gates, branch_scale="tanh"), global_layers),
        ),
        values_per_patch=pixels.channels,
        patches_per_token=1,
        token_width=outputs,
        stem_tensors=before_layers,
        projector_tensors=linear("multi_modal_projector", outputs, features, "projector", "none", bias=True),
        middle=Between(between_layers),
        feature_layers=gathered,
        embedding_can_be_hooked=True,
        cross_attention=CrossReading(_crossing_layers(model), tiles),
        rows_per_tile=tiles * padded_rows,
        tokens_per_tile=tiles * rows,
        token_budgets=(tiles * padded_rows,),
        class_tokens_per_tile=tiles * (padded_rows - rows + 1),
        returns_image_tokens=False,
        patch_side=pixels.patch_side,
        heads=size.heads,
        processor="mllama:process",
        path="vision_model",
        layers_path="transformer.layers",
        projector_path="multi_modal_projector",
    )


def _crossing_layers(model: TowerContext) -> tuple[int, ...]:
    """Return the numbers of the language model's layers that read pictures by cross-attention."""
    text, language = model.outer.raw("text_config"), model.language
    section = ConfigReader(text, "mllama", "text_config.") if isinstance(text, dict) else model.outer
    num_layers = language.num_layers + sum(n for other in language.others for _, n in other.blocks)
    return tuple(i for i in crossing_layers(section) if i < num_layers)


def _gathered_layers(config: ConfigReader, size: LayerSizes) -> tuple[int, ...]:
    """Read the numbers of the layers whose rows the projector reads, too (``intermediate_layers_indices``)."""
    indices = config.integers("intermediate_layers_indices") or (3, 7, 15, 23, 30)
    for index in indices:
        if not -size.depth <= index < size.depth:
            config.fail("intermediate_layers_indices", f"layer {index} is not among the tower's {size.depth}")
    return tuple(sorted(index % size.depth for index in indices))


def _tensors_around_layers(
    config: ConfigReader, width: int, pixels: Pixels, tiles: int
) -> tuple[tuple[ParameterTensor, ...], tuple[ParameterTensor, ...]]:
    """List the tensors before the local layers, and those between the local and the global layers.

    ``tiles``: of a picture at most. Tables of positions have a row for each of ``supported_aspect_ratios``.
    """
    ratios = config.raw("supported_aspect_ratios")
    grids = len(ratios) if isinstance(ratios, (list, tuple)) else RATIOS
    rows, gated = pixels.patches + 1, "gated_positional_embedding"
    before = (
        *patch_convolution_tensors("patch_embedding", width, pixels, bias=False),
        *_gated_tile_positions("pre_tile_positional_embedding", grids, tiles * width),
        ParameterTensor("class_embedding", (width,), "vision"),
        ParameterTensor(f"{gated}.gate", (1,), "vision"),
        ParameterTensor(f"{gated}.embedding", (rows, width), "position"),
        ParameterTensor(f"{gated}.tile_embedding.weight", (grids + 1, tiles * rows * width), "position"),
        *norm_pair("layernorm_pre", width),
    )
    between = (
        *norm_pair("layernorm_post", width),
        *_gated_tile_positions("post_tile_positional_embedding", grids, tiles * width),
    )
    return before, between


def _gated_tile_positions(name: str, grids: int, width: int) -> tuple[ParameterTensor, ParameterTensor]:
    """List a position table with a row for each aspect ratio of tiles, and its gate. Row 0 is for pictures without
    tiles.
    """
    return (
        ParameterTensor(name + ".embedding.weight", (grids + 1, width), "position"),
        ParameterTensor(name + ".gate", (1,), "vision"),
    )


def _layer(size: LayerSizes, activation: str) -> Block:
    """Build a layer of the tower, without biases, whose attention has an additive mask over all tiles of a picture."""
    mlp = tower_mlp(size.width, size.inner, activation, NAMES.mlp)
    block = tower_layer(size.width, size.heads, mlp, "mllama:additive_mask", NAMES, bias=False)
    mixer = block.mixer
    if not isinstance(mixer, TowerAttention):
        return block
    return block._replace(mixer=mixer._replace(tensors=tuple(t for t in mixer.tensors if t.linear)))


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute patches, class token, tile and patch positions, and the padding to a multiple of eight rows.

    Returns the rows of all tiles, and the values that live while layers run, among them the attention mask. The hook is
    on ``patch_embedding``.
    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    tape, pictures = ctx.tape, max(1, ctx.setting.images)
    weight, pre_tile_table, pre_tile_gate, token, gate, table, tile_table, *norm = vision.stem_tensors
    x, live = require_input_grads(
        patch_convolution(ctx, vision, ctx.tokens - pictures * vision.class_tokens_per_tile, weight, None),
        require_grad=require_grad,
    )
    x = _add_tile_positions(ctx, x, pre_tile_table, pre_tile_gate)
    rows_without_padding = ctx.tokens * vision.tokens_per_tile // vision.rows_per_tile
    x = prepend_class_token(ctx, x, token, rows_without_padding)
    x = add_position_embedding(ctx, x, table, looked_up=False)
    x = _add_tile_positions(ctx, x, tile_table, gate)
    x = _padded(ctx, layer_norm(ctx, x, tuple(norm)), ctx.tokens)
    if ctx.setting.attention != "flex":
        rows_per_picture, dtype = ctx.tokens // pictures, tape.autocast or ctx.setting.param_dtype  # a product makes it
        mask_product = tape.new((pictures, rows_per_picture, rows_per_picture), dtype, "product of masks")
        masks = ctx.extra_outputs if ctx.setting.attention == "eager" else live  # a sum keeps nothing of it
        masks.append(tape.value((pictures, 1, rows_per_picture, rows_per_picture), dtype, "mask of tiles"))
        del mask_product
    return x, live


def _add_tile_positions(ctx: Context, x: Value, table: ParameterTensor, gate: ParameterTensor) -> Value:
    """Add ``gate.tanh() * embedding(aspect_ratio_ids)`` to ``x``, the rows of all tiles: the shape of ``x``.

    ``table``: one row of embeddings for each aspect ratio of tiles. Each picture's row, [pictures, row], is saved for
    the gate's gradient.
    """
    tape = ctx.tape
    table_parameter = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    gate_parameter = ctx.parameter(gate.name, gate.shape)
    picture_shape = (max(1, ctx.setting.images), table.shape[1])
    embedded = tape.new(picture_shape, table_parameter.dtype, "looked up for the grid")
    gated = tape.new(picture_shape, table_parameter.dtype, "gated")
    out = tape.value(x.shape, promote(x.dtype, table_parameter.dtype), "add embedding of the grid")
    del gated
    needs_input_grad, trains_table, trains_gate = (
        x.needs_grad,
        table_parameter.requires_grad,
        gate_parameter.requires_grad,
    )
    saved = embedded if trains_gate else None
    shape, input_dtype = x.shape, x.dtype
    dtype, table_shape = table_parameter.dtype, table.shape

    def add_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradients of ``x``, table and gate, the last two from a sum over each picture's rows."""
        dx: Storage | None = None
        if needs_input_grad:
            dx = grad if grad.dtype == input_dtype else tape.new(shape, input_dtype, "to backward")
        if not trains_table and not trains_gate:
            return [dx, None, None]
        summed = tape.new(picture_shape, dtype, "sum over rows")
        gradients: list[Storage | None] = [dx, None, None]
        if trains_gate:
            product = tape.new(picture_shape, dtype, "gate backward")
            gradients[2] = tape.new((1,), dtype, "sum")
            del product
        if trains_table:
            scaled = tape.new(picture_shape, dtype, "mul backward")
            del summed
            gradients[1] = tape.new(table_shape, dtype, "embedding backward")
            del scaled
        return gradients

    return tape.record(
        out, (x, tape.parameter(table_parameter), tape.parameter(gate_parameter)), add_backward, saves=(saved,)
    )


def _padded(ctx: Context, x: Value, rows: int) -> Value:
    """Pad each tile with ``F.pad`` to ``rows`` rows in total; the backward cuts the padding off."""
    tape = ctx.tape
    return operator(tape, tape.value((rows, x.shape[1]), x.dtype, "pad"), x, "pad backward")


def between(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``layernorm_post`` and ``post_tile_positional_embedding``, between the local and the global layers."""
    *norm, table, gate = vision.middle_tensors
    return _add_tile_positions(ctx, layer_norm(ctx, x, tuple(norm)), table, gate)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector`` of the last layer's rows, joined with those of earlier layers, without padding.

    Returns [rows without padding, text hidden], the states that the text's cross-attention reads.
    """
    tape, hidden = ctx.tape, x.shape[1]
    real, count = ctx.tokens * vision.tokens_per_tile // vision.rows_per_tile, len(vision.feature_layers)
    shape, dtype = x.shape, x.dtype
    stacked = tape.new((shape[0], hidden * count), dtype, "stack of earlier rows")
    out = tape.value((real, hidden * (count + 1)), dtype, "cat earlier rows")
    del stacked

    stack = ((shape[0], hidden * count), dtype, "stack backward")  # earlier layers' parts of it wait for them
    x = operator(tape, out, x, "slice backward", later=[stack])
    keep_in_variable(ctx, x)  # `last_hidden_state`
    return linear_layer(ctx, x, vision.projector_tensors[0], bias=True)


def additive_mask(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute the attention of Llama 3.2 Vision: all tiles of a picture are one sequence.

    Padding is masked by an additive mask that the stem has made.
    """
    return separate_attention(
        ctx, attention, x, mask_dtype=ctx.tape.autocast or ctx.setting.param_dtype, per_picture=True
    )


FORWARDS = {
    "mllama": TowerForward(stem, project, middle=between),
}
"""By name, the forward passes of a kind of tower."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count the patches of a picture for Llama 3.2 Vision, and its one token in the text (image_processing_mllama.py).

    Every picture has the same number of tiles; those that it does not fill are masked. ``height``, ``width``: in
    pixels.
    """
    no_clips(frames)
    no_limits(limits)
    return ProcessedPicture(pictures=1, patches=vision.rows_per_tile, image_tokens=1)
