"""The towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches of all pictures in one row, merged by fours.

modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py of transformers 5.23.

Qwen2-VL: patches as rows, a convolution that is a matrix product, a LayerNorm in the merger.

modeling_qwen2_vl.py of transformers 5.23.

Qwen2.5-VL: rows in the order of their windows, an RMSNorm in the merger, image tokens put back in order.

modeling_qwen2_5_vl.py of transformers 5.23, Qwen2_5_VisionTransformerPretrainedModel.forward.

Qwen3-VL and Qwen3.5: learned positions between grid points, mergers after several layers (modeling_qwen3_vl.py).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.modules import fused_norm, rms_norm_pieces
from memcheck.autograd.operator import add, cast, index, operator, unary
from memcheck.autograd.tensor import Storage, Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import TowerForward
from memcheck.families.towers.forward_parts import (
    cast_pixel_values,
    cat_image_tokens,
    keep_in_variable,
    layer_norm,
    linear_layer,
    require_input_grads,
)
from memcheck.models.decoder import linear, stack
from memcheck.models.reader import MAX_LAYERS, REQUIRED, ConfigReader, Required
from memcheck.models.types import Block, Mlp, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record

HARMLESS = ("model_type", "tokens_per_second", "temporal_patch_size", "rope_parameters", "initializer_range", "dtype")


def read_qwen2(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of Qwen2-VL: LayerNorm and QuickGELU. Its ``hidden_size`` repeats the language model's."""
    hidden = model.language.hidden_size
    width = config.integer("embed_dim")
    heads = heads_of(config, width)
    outputs = config.integer("hidden_size")
    if outputs != hidden:
        config.fail("hidden_size", f"hidden_size = {outputs} of the tower is not the language model's {hidden}")
    config.ignore("spatial_patch_size")
    activation = config.activation(default="quick_gelu")
    mlp = packed_mlp(width, int(width * config.number("mlp_ratio", default=4)), activation, ("fc1", "fc2"), gated=False)
    block = packed_block(width, heads, mlp, "layernorm")
    merge = config.integer("spatial_merge_size", default=2) ** 2
    depth = config.integer("depth", maximum=MAX_LAYERS)
    return Vision(
        kind="qwen:qwen",
        layers_path="blocks",
        hidden=width,
        blocks=((block, depth),),
        values_per_patch=channels(config, 14),
        patches_per_token=merge,
        token_width=outputs,
        stem_tensors=patch_embedding(config, width, 14),
        projector_tensors=merger("merger", width, merge, outputs, "ln_q", ("mlp.0", "mlp.2"), bias=True),
        embedding_can_be_hooked=True,
        residual_in_autocast_dtype=True,
        patch_side=config.integer("patch_size", default=14),
        processor="processors:process_2",
        separator_tokens=2,
        returns_image_tokens=False,
        heads=heads,
        activation="gelu",
    )


def read_2_5(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of Qwen2.5-VL: RMSNorm, a gated MLP with biases, and windows of 112 pixels."""
    tower = windowed_tower(config, model, "merger")
    outputs_of(config, model.language.hidden_size)
    return tower


def windowed_tower(config: ConfigReader, model: TowerContext, merger_path: str) -> Vision:
    """Read Qwen2.5-VL's tower, whose image tokens may have another width than the language model.

    All layers attend within windows but those in ``fullatt_block_indexes``.
    """
    width, outputs = config.integer("hidden_size"), config.integer("out_hidden_size")
    heads = heads_of(config, width)
    config.ignore("spatial_patch_size")
    names = ("gate_proj", "up_proj", "down_proj")
    mlp = packed_mlp(width, config.integer("intermediate_size"), config.activation(), names)
    depth = config.integer("depth", maximum=MAX_LAYERS)
    merge = config.integer("spatial_merge_size", default=2) ** 2
    window_patches = config.integer("window_size", default=112) // config.integer("patch_size", default=14)
    fullatt_indexes = config.integers("fullatt_block_indexes")
    full_attention_layers = (7, 15, 23, 31) if fullatt_indexes is None else fullatt_indexes
    block_of = {
        window: packed_block(width, heads, mlp, "rmsnorm", window_patches * window_patches if window else 0)
        for window in (True, False)
    }
    return Vision(
        kind="qwen:qwen2_5",
        layers_path="blocks",
        hidden=width,
        blocks=stack([i not in full_attention_layers for i in range(depth)], block_of.__getitem__),
        values_per_patch=channels(config, 14),
        patches_per_token=merge,
        token_width=outputs,
        stem_tensors=patch_embedding(config, width, 14),
        projector_tensors=merger(merger_path, width, merge, outputs, "ln_q", ("mlp.0", "mlp.2"), bias=False),
        embedding_can_be_hooked=True,
        residual_in_autocast_dtype=True,
        patch_side=config.integer("patch_size", default=14),
        processor="processors:process_2",
        separator_tokens=2,
        returns_image_tokens=False,
        heads=heads,
        activation="gelu",
    )


class MergerNames(Record):
    """What a class calls the modules of its mergers."""

    norm: str = "norm"
    matrices: tuple[str, str] = ("linear_fc1", "linear_fc2")
    stacked: str = "deepstack_merger_list"
    """The list of mergers of earlier layers' rows."""


def read_3(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of Qwen3-VL and Qwen3.5; only Qwen3-VL has deepstack mergers by default."""
    stacks = model.outer.model_type.startswith(("cosmos3_omni", "qwen3_vl"))
    return deepstack_tower(config, model, MergerNames(), (8, 16, 24) if stacks else ())


def deepstack_tower(config: ConfigReader, model: TowerContext, names: MergerNames, default: tuple[int, ...]) -> Vision:
    """Read Qwen3-VL's tower: LayerNorm, learned positions, and mergers after the layers in
    ``deepstack_visual_indexes``.

    ``default``: these layers where the configuration has none. Mergers of layers that do not exist are unused.
    """
    width = config.integer("hidden_size", default=1152)
    heads, outputs = heads_of(config, width, 16), outputs_of(config, model.language.hidden_size)
    inner = config.integer("intermediate_size", default=4304)
    activation = config.activation(default="gelu_pytorch_tanh")
    mlp = packed_mlp(width, inner, activation, ("linear_fc1", "linear_fc2"), gated=False)
    merge = config.integer("spatial_merge_size", default=2) ** 2
    depth = config.integer("depth", default=27, maximum=MAX_LAYERS)
    deepstack_indexes = config.integers("deepstack_visual_indexes")
    stated_layers = default if deepstack_indexes is None else deepstack_indexes
    positions = config.integer("num_position_embeddings", default=2304)
    projector = merger("merger", width, merge, outputs, names.norm, names.matrices, bias=True)
    deepstack_layers = tuple(sorted(layer for layer in stated_layers if layer < depth))
    unused: tuple[ParameterTensor, ...] = ()
    for number in range(len(stated_layers)):
        path = f"{names.stacked}.{number}"
        tensors = merger(path, width, merge, outputs, names.norm, names.matrices, bias=True, rows=merge)
        if number < len(deepstack_layers):
            projector += tensors
        else:
            unused += tensors
    table = ParameterTensor("pos_embed.weight", (positions, width), "position")
    return Vision(
        kind="qwen:qwen3",
        layers_path="blocks",
        hidden=width,
        blocks=((packed_block(width, heads, mlp, "layernorm"), depth),),
        values_per_patch=channels(config, 16),
        patches_per_token=merge,
        token_width=outputs,
        stem_tensors=(*patch_embedding(config, width, 16, bias=True), table),
        projector_tensors=projector,
        embedding_can_be_hooked=False,
        residual_in_autocast_dtype=True,
        deepstack_layers=deepstack_layers,
        unused_tensors=unused,
        patch_side=config.integer("patch_size", default=16),
        processor="processors:process_3",
        separator_tokens=2,
        returns_image_tokens=False,
        heads=heads,
        activation="gelu",
    )


def packed_block(
    width: int,
    heads: int,
    mlp: Mlp,
    norm: str,
    window: int = 0,
    attention: TowerAttention | None = None,
) -> Block:
    """Build a pre-norm layer that works on the patches of all pictures in one row.

    ``attention``: default is one with a single matrix for q, k and v. ``window``: patches of a window; 0 for full
    attention.
    """
    attention = attention or TowerAttention(
        heads=heads,
        head_dim=width // heads,
        kind="packed",
        tensors=linear("attn.qkv", 3 * width, width, "attention", "column", bias=True)
        + linear("attn.proj", width, width, "attention", "row", bias=True),
        window=window,
    )
    bias = norm == "layernorm"
    return Block(
        mixer=attention,
        mlp=mlp,
        input_norm=Norm(norm, width, bias=bias, name="norm1"),
        mlp_norm=Norm(norm, width, bias=bias, name="norm2"),
    )


def packed_mlp(
    width: int, inner: int, activation: str, names: tuple[str, ...], *, gated: bool = True, bias: bool = True
) -> Mlp:
    """Build the feed-forward network of a packed layer. ``names``: its matrices, the down projection last."""
    tensors: tuple[ParameterTensor, ...] = ()
    for name in names[:-1]:
        tensors += linear(f"mlp.{name}", inner, width, "mlp", "column", bias=bias)
    tensors += linear(f"mlp.{names[-1]}", width, inner, "mlp", "row", bias=bias)
    return Mlp(inner, gated, activation, bias=bias, tensors=tensors)


def merger(
    path: str, width: int, merge: int, outputs: int, norm: str, names: tuple[str, str], *, bias: bool, rows: int = 1
) -> tuple[ParameterTensor, ...]:
    """List the tensors of a merger in forward order: a norm over ``rows`` patches, and two matrices.

    ``path``: its module. ``width``: of the tower. ``merge``: patches of an image token. ``outputs``: width of that
    token. ``norm``, ``names``: names of the norm and the matrices in the module. ``bias``: the norm has a bias.
    """
    merged_width = width * merge
    norm_tensors = [ParameterTensor(f"{path}.{norm}.weight", (width * rows,), "norm")]
    if bias:
        norm_tensors.append(ParameterTensor(f"{path}.{norm}.bias", (width * rows,), "norm"))
    first = linear(f"{path}.{names[0]}", merged_width, merged_width, "mlp", "none", bias=True)
    return (*norm_tensors, *first, *linear(f"{path}.{names[1]}", outputs, merged_width, "mlp", "none", bias=True))


def patch_embedding(config: ConfigReader, width: int, patch: int, *, bias: bool = False) -> tuple[ParameterTensor, ...]:
    """List the tensors of a convolution over the pixels of a patch, in two frames."""
    patch_size = config.integer("patch_size", default=patch)
    shape = (width, _pixel_channels(config), config.integer("temporal_patch_size", default=2), patch_size, patch_size)
    tensors = (ParameterTensor("patch_embed.proj.weight", shape, "vision"),)
    return (*tensors, ParameterTensor("patch_embed.proj.bias", (width,), "vision")) if bias else tensors


def _pixel_channels(config: ConfigReader) -> int:
    """Channels of a pixel (``in_channels``), 3 by default."""
    return config.integer("in_channels", "in_chans", default=3)


def channels(config: ConfigReader, patch: int) -> int:
    """Return the numbers in one patch: colours times frames times pixels."""
    side, frames = config.integer("patch_size", default=patch), config.integer("temporal_patch_size", default=2)
    config.ignore(*HARMLESS)
    return _pixel_channels(config) * frames * side * side


def heads_of(config: ConfigReader, width: int, default: int | Required = REQUIRED) -> int:
    """Read the number of attention heads of the tower (``num_heads``)."""
    heads = config.integer("num_heads", default=default)
    if width % heads:
        config.fail("num_heads", f"the tower's width {width} is no multiple of {heads} heads")
    return heads


def outputs_of(config: ConfigReader, hidden: int) -> int:
    """Read the width of an image token (``out_hidden_size``), which must be the language model's hidden size."""
    outputs = config.integer("out_hidden_size")
    if outputs != hidden:
        config.fail("out_hidden_size", f"out_hidden_size = {outputs} is not the language model's width {hidden}")
    return outputs


def qwen_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embed``: [patches, hidden]. Returns it with the values that live while layers run: the rotary
    tables.

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    x, live = require_input_grads(embedded_patches(ctx, vision), require_grad=require_grad)
    return x, live + rotary_tables(ctx, vision)


def qwen_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``merger``: a LayerNorm, and an MLP that makes one image token of ``merge`` patches."""
    norm, bias = vision.projector_tensors[:2]
    weight, bias_parameter = ctx.parameter(norm.name, norm.shape), ctx.parameter(bias.name, bias.shape)
    x = fused_norm(ctx.tape, x, weight, bias_parameter, "layernorm")
    merged = merge(ctx, vision, x, vision.projector_tensors[2:])
    return cat_image_tokens(ctx, merged)


def embedded_patches(ctx: Context, vision: Vision) -> Value:
    """Compute the patch embedding, a convolution whose stride is its kernel: [patches, hidden].

    ``pixel_values`` are cast to the tower's dtype, and saved if the weights are trained. The output is a view.
    """
    tape = ctx.tape
    weight, *stem_tensors = vision.stem_tensors
    weight_parameter = ctx.parameter(weight.name.removesuffix(".weight"), weight.shape)
    biases = [ctx.parameter(t.name, t.shape) for t in stem_tensors if t.name.endswith("proj.bias")]
    dtype = tape.autocast or weight_parameter.dtype
    pixels = cast_pixel_values(ctx, (ctx.tokens, vision.values_per_patch), dtype) if dtype != "fp32" else None
    shape = (ctx.tokens, vision.hidden)
    if pixels is not None and not tape.autocast:  # a variable of `get_image_features`
        keep_in_variable(ctx, pixels)
    weight_value = (
        cast(tape, tape.parameter(weight_parameter), tape.autocast)
        if tape.autocast
        else tape.parameter(weight_parameter)
    )
    out = tape.value(shape, dtype, "patch_embed")
    saves = (pixels if weight_parameter.requires_grad else None,)
    bias_gradients = [(b.shape, dtype, "patch_embed db") for b in biases]
    return operator(
        tape, out, (weight_value, *map(tape.parameter, biases)), ["patch_embed dW", *bias_gradients], saves=saves
    )


def rotary_tables(ctx: Context, vision: Vision) -> list[Value]:
    """Allocate cos and sin of every row in fp32: [rows, head_dim] each."""
    shape = (ctx.tokens, vision.hidden // vision.heads)
    return [ctx.tape.value(shape, "fp32", "rotary table") for _ in range(2)]


def merge(ctx: Context, vision: Vision, x: Value, tensors: tuple[ParameterTensor, ...]) -> Value:
    """Compute ``mlp(x.view(-1, merge * hidden))``: two matrices with an activation between them."""
    tape = ctx.tape
    first, _, second, _ = tensors
    x = x.view(ctx.tokens // vision.patches_per_token, vision.hidden * vision.patches_per_token)
    inner = linear_layer(ctx, x, first, bias=True)
    activated = unary(tape, inner, vision.activation)
    del inner
    return linear_layer(ctx, activated, second, bias=True)


def qwen2_5_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embed``, and index its rows into the order of windows (``window_index``).

    Returns the rows, and the rotary tables that all layers are given.
    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    x, live = require_input_grads(embedded_patches(ctx, vision), require_grad=require_grad)
    order = ctx.tape.new((ctx.tokens // vision.patches_per_token,), "int64", "window index")
    x = index(ctx.tape, x, order, x.shape, "window order")
    return x, live + rotary_tables(ctx, vision)


def qwen2_5_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``merger``, and put the image tokens back in picture order (``reverse_indices``)."""
    norm = vision.projector_tensors[0]
    x = rms_norm_pieces(ctx.tape, x, ctx.parameter(norm.name, norm.shape))
    merged = merge(ctx, vision, x, vision.projector_tensors[1:])
    del x
    order = ctx.tape.new(merged.shape[:1], "int64", "reverse index")
    return cat_image_tokens(ctx, index(ctx.tape, merged, order, merged.shape, "picture order"))


GRID_NEIGHBOURS = 4
"""Points of the learned grid that a patch's position is interpolated between."""


def qwen3_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embed`` and ``pos_embed``: [patches, hidden], and the rotary tables.

    No input-gradient hook finds these modules, unless a trainer names ``patch_embed`` for it.
    """
    x, live = require_input_grads(embedded_patches(ctx, vision), require_grad=require_grad)
    position = interpolated_positions(ctx, vision.stem_tensors[2])
    keep_in_variable(ctx, position)  # `pos_embeds`
    x = add(ctx.tape, x, cast(ctx.tape, position, x.dtype), "add positions")
    return x, live + rotary_tables(ctx, vision)


def qwen3_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``merger`` on the last layer's rows; the image tokens of earlier layers are joined with them."""
    merger = vision.projector_tensors
    return cat_image_tokens(ctx, merge(ctx, vision, layer_norm(ctx, x, merger[:2]), merger[2:]))


def deepstack_merger(ctx: Context, vision: Vision, tensors: tuple[ParameterTensor, ...], x: Value) -> Value:
    """Compute one merger of ``deepstack_merger_list``: it norms and merges an earlier layer's rows, four by four."""
    merged_rows = x.view(ctx.tokens // vision.patches_per_token, vision.hidden * vision.patches_per_token)
    return merge(ctx, vision, layer_norm(ctx, merged_rows, tensors[:2]), tensors[2:])


def interpolated_positions(ctx: Context, table: ParameterTensor) -> Value:
    """Interpolate learned positions between grid points, in fp32: [patches, hidden].

    ``(pos_embed(indices) * weights[:, :, None]).sum(1)``, with the indices and weights of four grid points per patch.
    """
    tape, rows = ctx.tape, ctx.tokens
    parameter = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    width, dtype, trained = table.shape[1], parameter.dtype, parameter.requires_grad
    embedded = tape.new((rows, GRID_NEIGHBOURS, width), dtype, "pos_embed")
    weighted = tape.new((rows, GRID_NEIGHBOURS, width), "fp32", "pos_embed * weights")
    del embedded
    out = tape.value((rows, width), "fp32", "interpolated positions")
    del weighted
    saved = (
        tape.new((rows, GRID_NEIGHBOURS), "int64", "position indices"),
        tape.new((rows, GRID_NEIGHBOURS), "fp32", "weights"),
    )

    def positions_backward(grad: Storage) -> list[Storage | None]:
        """Return the table's gradient, over the fp32 gradient of the weighted rows and its cast."""
        fp32_gradient = tape.new((rows, GRID_NEIGHBOURS, width), "fp32", "mul backward")
        cast_gradient = (
            tape.new((rows, GRID_NEIGHBOURS, width), dtype, "to backward") if dtype != "fp32" else fp32_gradient
        )
        del fp32_gradient
        embedded = tape.new(table.shape, dtype, "embedding backward") if trained else None
        del cast_gradient
        return [embedded]

    return tape.record(out, (tape.parameter(parameter),), positions_backward, saves=saved)


FORWARDS = {
    "qwen": TowerForward(qwen_stem, qwen_project, runs_layers_itself=True),
    "qwen2_5": TowerForward(qwen2_5_stem, qwen2_5_project, runs_layers_itself=True),
    "qwen3": TowerForward(
        qwen3_stem, qwen3_project, early_tokens=deepstack_merger, runs_layers_itself=True, hooked_by_swift=True
    ),
}
