"""Llama 3.2 Vision: four tiles of each picture in one sequence, local layers, gated global ones, earlier layers' rows.

modeling_mllama.py of transformers 5.23. Pictures of fewer tiles are padded to as many, and each tile's rows to a
multiple of eight.

Llama 3.2 Vision's tower: tables for each grid of tiles, gates, padded rows, and a mask of all tiles of a picture.

modeling_mllama.py of transformers 5.23, MllamaVisionModel.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value, promote
from memcheck.families.multimodal import AroundTower
from memcheck.families.pictures import Limits, ProcessedPicture, no_clips, no_limits
from memcheck.families.tower import TowerForward
from memcheck.families.towers.attention import separate_attention
from memcheck.families.towers.forward_parts import (
    add_position_embedding,
    layer_norm,
    linear_layer,
    patch_convolution,
    prepend_class_token,
    require_input_grads,
)
from memcheck.families.towers.parts import (
    LayerNames,
    norm_pair,
    require_divisible_heads,
    square_side,
    tower_layer,
    tower_mlp,
)
from memcheck.models.families.mllama import crossing_layers
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import Between, CrossReading, TowerAttention, Vision

ALIGNMENT = 8
"""Rows of a tile are padded to a multiple of it."""
RATIOS = 8
"""Grids of up to four tiles: ``supported_aspect_ratios`` of the class."""
NAMES = LayerNames(output="self_attn.o_proj", norms=("input_layernorm", "post_attention_layernorm"))


def read(config: ConfigReader, model: AroundTower) -> Vision:
    """``model_type: mllama``."""
    width = config.integer("hidden_size", default=1280)
    heads = config.integer("attention_heads", "num_attention_heads", default=16)
    require_divisible_heads(config, width, heads)
    depth = config.integer("num_hidden_layers", default=32, maximum=MAX_LAYERS)
    behind = config.integer("num_global_layers", default=8, maximum=MAX_LAYERS)
    inner = config.integer("intermediate_size", default=5120)
    pixel_channels = config.integer("num_channels", default=3)
    image_size, patch = square_side(config, "image_size", 448), square_side(config, "patch_size", 14)
    tiles = config.integer("max_num_tiles", default=4)
    earlier = config.integers("intermediate_layers_indices") or (3, 7, 15, 23, 30)
    for index in earlier:
        if not -depth <= index < depth:
            config.fail("intermediate_layers_indices", f"layer {index} is not among the tower's {depth}")
    wide = (len(earlier) + 1) * width
    stated = config.integer("vision_output_dim", default=wide)
    if stated != wide:
        config.fail("vision_output_dim", f"{len(earlier)} earlier layers and the last have {wide}")
    ratios = config.raw("supported_aspect_ratios")
    grids = len(ratios) if isinstance(ratios, (list, tuple)) else RATIOS
    config.ignore("initializer_range", "norm_eps", "supported_aspect_ratios")
    mlp = tower_mlp(width, inner, config.activation(default="gelu"), NAMES.mlp)
    rows = (image_size // patch) ** 2 + 1
    padded = -(-rows // ALIGNMENT) * ALIGNMENT
    outputs = model.language.hidden_size
    text = model.outer.raw("text_config")
    section = ConfigReader(text, "mllama", "text_config.") if isinstance(text, dict) else model.outer
    local = _layer(width, heads, mlp.width, mlp.activation)
    gates = tuple(ParameterTensor(name, (1,), "vision") for name in ("gate_attn", "gate_ffn"))
    return Vision(
        kind="mllama:mllama",
        hidden=width,
        blocks=((local, depth), (local._replace(extra_tensors=gates, layer_scale=True, tanh_gates=True), behind)),
        channels=pixel_channels * patch * patch,
        merge=1,
        outputs=outputs,
        stem=(
            ParameterTensor("patch_embedding.weight", (width, pixel_channels, patch, patch), "vision"),
            *_by_ratio("pre_tile_positional_embedding", grids, tiles * width),
            ParameterTensor("class_embedding", (width,), "vision"),
            ParameterTensor("gated_positional_embedding.gate", (1,), "vision"),
            ParameterTensor("gated_positional_embedding.embedding", (rows, width), "position"),
            ParameterTensor(
                "gated_positional_embedding.tile_embedding.weight", (grids + 1, tiles * rows * width), "position"
            ),
            *norm_pair("layernorm_pre", width),
        ),
        closing=(),
        projector=linear("multi_modal_projector", outputs, wide, "projector", "none", bias=True),
        between=Between(
            (
                *norm_pair("layernorm_post", width),
                *_by_ratio("post_tile_positional_embedding", grids, tiles * width),
            )
        ),
        gathered=tuple(sorted(index % depth for index in earlier)),
        hooked=True,
        cross=CrossReading(tuple(i for i in crossing_layers(section) if i < _layers(model)), tiles),
        tile=tiles * padded,
        tile_tokens=tiles * rows,
        budgets=(tiles * padded,),
        classes=tiles * (padded - rows + 1),
        gives_out=False,
        patch=patch,
        heads=heads,
        processor="mllama:process",
        path="vision_model",
        layers="transformer.layers",
        projector_path="multi_modal_projector",
    )


def _layers(model: AroundTower) -> int:
    a = model.language
    return a.num_layers + sum(n for other in a.others for _, n in other.blocks)


def _by_ratio(name: str, grids: int, width: int) -> tuple[ParameterTensor, ParameterTensor]:
    """A table with a row for each grid of tiles, and its gate."""
    return (
        ParameterTensor(name + ".embedding.weight", (grids + 1, width), "position"),
        ParameterTensor(name + ".gate", (1,), "vision"),
    )


def _layer(width: int, heads: int, inner: int, activation: str) -> Block:
    block = tower_layer(
        width, heads, tower_mlp(width, inner, activation, NAMES.mlp), "mllama:additive_mask", NAMES, bias=False
    )
    mixer = block.mixer
    tensors = tuple(t for t in mixer.tensors if t.linear) if isinstance(mixer, TowerAttention) else ()
    attention = TowerAttention(
        heads=heads, head_dim=width // heads, kind="mllama:additive_mask", tensors=tensors, bias=False
    )
    return block._replace(mixer=attention)


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """``patch_embedding``, whose output the hook is on, to the padded rows, and the mask."""
    tape, pictures = ctx.tape, max(1, ctx.setting.images)
    weight, before, before_gate, token, gate, table, tiles, *norm = vision.stem
    x, live = require_input_grads(
        patch_convolution(ctx, vision, ctx.tokens - pictures * vision.classes, weight, None), require_grad=require_grad
    )
    x = _by_grid(ctx, x, before, before_gate)
    real = ctx.tokens * vision.tile_tokens // vision.tile
    x = prepend_class_token(ctx, x, token, real)
    x = add_position_embedding(ctx, x, table, looked_up=False)
    x = _by_grid(ctx, x, tiles, gate)
    x = _padded(ctx, layer_norm(ctx, x, tuple(norm)), ctx.tokens)
    if ctx.setting.attention != "flex":
        each, dtype = ctx.tokens // pictures, tape.autocast or ctx.setting.param_dtype  # a product makes it
        first = tape.new((pictures, each, each), dtype, "product of masks")
        masks = ctx.extra_outputs if ctx.setting.attention == "eager" else live  # a sum keeps nothing of it
        masks.append(tape.value((pictures, 1, each, each), dtype, "mask of tiles"))
        del first
    return x, live


def _by_grid(ctx: Context, x: Value, table: ParameterTensor, gate: ParameterTensor) -> Value:
    """``x + gate.tanh() * embedding(aspect_ratio_ids)``: what was looked up for each picture is kept for the gate."""
    tape = ctx.tape
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    g = ctx.parameter(gate.name, gate.shape)
    some = (max(1, ctx.setting.images), table.shape[1])
    looked = tape.new(some, p.dtype, "looked up for the grid")
    gated = tape.new(some, p.dtype, "gated")
    out = tape.value(x.shape, promote(x.dtype, p.dtype), "add embedding of the grid")
    del gated
    wants, learns, opens = x.origin is not None, p.requires_grad, g.requires_grad
    kept = looked if opens else None
    shape, stream, dtype, whole = x.shape, x.dtype, p.dtype, table.shape

    def run(grad: Storage) -> list[Storage | None]:
        passed = None if not wants else grad if grad.dtype == stream else tape.new(shape, stream, "to backward")
        if not learns and not opens:
            return [passed, None, None]
        summed = tape.new(some, dtype, "sum over rows")
        found: list[Storage | None] = [passed, None, None]
        if opens:
            product = tape.new(some, dtype, "gate backward")
            found[2] = tape.new((1,), dtype, "sum")
            del product
        if learns:
            scaled = tape.new(some, dtype, "mul backward")
            del summed
            found[1] = tape.new(whole, dtype, "embedding backward")
            del scaled
        return found

    return tape.record(out, (x, tape.parameter(p), tape.parameter(g)), run, saves=(kept,))


def _padded(ctx: Context, x: Value, rows: int) -> Value:
    """``F.pad`` of the rows of each tile; its backward is one with fewer."""
    tape = ctx.tape
    return operator(tape, tape.value((rows, x.shape[1]), x.dtype, "pad"), x, "pad backward")


def between(ctx: Context, vision: Vision, x: Value) -> Value:
    """``layernorm_post`` and ``post_tile_positional_embedding``, before the global layers."""
    *norm, table, gate = vision.between_tensors
    return _by_grid(ctx, layer_norm(ctx, x, tuple(norm)), table, gate)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """The last rows and those of earlier layers, without padding, and ``multi_modal_projector``."""
    tape, hidden = ctx.tape, x.shape[1]
    real, count = ctx.tokens * vision.tile_tokens // vision.tile, len(vision.gathered)
    shape, dtype = x.shape, x.dtype
    stacked = tape.new((shape[0], hidden * count), dtype, "stack of earlier rows")
    out = tape.value((real, hidden * (count + 1)), dtype, "cat earlier rows")
    del stacked

    stack = ((shape[0], hidden * count), dtype, "stack backward")  # earlier layers' parts of it wait for them
    x = operator(tape, out, x, "slice backward", later=[stack])
    ctx.extra_outputs.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    return linear_layer(ctx, x, vision.projector[0], bias=True)


def additive_mask(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Llama 3.2 Vision: the tiles of a picture in one sequence, under an additive mask that the stem has made."""
    return separate_attention(ctx, attention, x, one=ctx.tape.autocast or ctx.setting.param_dtype, apart=True)


FORWARDS = {
    "mllama": TowerForward(stem, project, between=between),
}
"""By name, the forward passes of a kind of tower."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Llama 3.2 Vision: as many tiles of every picture, of which those that it does not fill are masked, and one token
    in the text (image_processing_mllama.py).
    """
    no_clips(frames)
    no_limits(limits)
    return ProcessedPicture(pictures=1, patches=vision.tile, tokens=1)
