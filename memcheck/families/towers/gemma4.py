"""Gemma's audio tower, a conformer: what is resident of it in a step without sounds (modeling_gemma4.py).

Gemma 4's tower: padded pictures, axial rotations, average pooling by position (modeling_gemma4.py).

Gemma 4: padded pictures, positions of two tables, average pooling as a product (modeling_gemma4.py).

Gemma 4's processor: every picture is scaled to a budget of image tokens, and padded to it.

transformers 5.23 models/gemma4/image_processing_gemma4.py (``get_aspect_ratio_preserving_size``).

Gemma 4 without towers: a matrix between norms makes rows of merged patches (modeling_gemma4_unified.py).

Gemma 4 without towers: norms around a matrix and learned positions (Gemma4UnifiedVisionEmbedder.forward).
"""

from __future__ import annotations

import math

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.kernels import rotate_half
from memcheck.autograd.modules import matrix, normalise, rms_norm_pieces
from memcheck.autograd.operator import add, cast, cat, index, operator, scale, shift
from memcheck.autograd.tensor import Storage, Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    IRRELEVANT_KEYS,
    Limits,
    PictureError,
    ProcessedPicture,
    TowerForward,
    idle_layer,
    no_limits,
    norm_pair,
    require_divisible_heads,
    square_side,
)
from memcheck.families.towers.attention import attention_kernel
from memcheck.families.towers.forward_parts import keep_in_variable, layer_norm, linear_layer, return_image_tokens
from memcheck.models.decoder import linear, norm_tensors, rms_norm, vector
from memcheck.models.module_types import ClippedMlp
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, Mlp, Norm, ParameterTensor
from memcheck.models.vision import Buffers, ClippedTowerAttention, OtherTower, TowerAttention, Vision

CLIP_SCALARS = 4
"""Buffers of one clipped linear layer: the minimum and maximum of its input and of its output."""
AUDIO_LINEARS, VISION_LINEARS = 10, 7
"""Linear layers that may be clipped in one layer of the audio tower and of the vision tower."""


def read_audio(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    """Read Gemma 4's audio tower and its projection from ``audio_config``; empty where that is null or absent.

    The tower is idle in a step without sounds, so only its tensors and buffers are read.
    """
    if outer.raw("audio_config") is None:
        return ()
    config = outer.section("audio_config")
    width = config.integer("hidden_size", default=1024)
    heads = config.integer("num_attention_heads", default=8)
    require_divisible_heads(config, width, heads)
    projected_width = config.integer("output_proj_dims", default=1536)
    kernel = config.integer("conv_kernel_size", default=5)
    config.ignore(
        "model_type", "hidden_act", "residual_weight", "attention_chunk_size", "attention_context_left",
        "attention_context_right", "attention_logit_cap", "attention_invalid_logits_value", "gradient_clipping",
        "initializer_range",
    )  # fmt: skip
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    clipped = config.flag("use_clipped_linears", default=True)
    tensors = (
        *_subsampling_tensors(config, width),
        *linear("output_proj", projected_width, width, "audio", "none", bias=True),
        *linear("embed_audio.embedding_projection", outputs, projected_width, "projector", "none"),
    )
    layer = idle_layer(_conformer_tensors(width, width // heads, kernel))
    clip_scalars = AUDIO_LINEARS * CLIP_SCALARS * depth if clipped else 0
    tower = OtherTower(
        part="audio", path="model.audio_tower.", layers_path="layers", blocks=((layer, depth),), tensors=tensors
    )
    return (tower._replace(buffers=(Buffers(clip_scalars, 1, is_fp32=False),)),)


def _subsampling_tensors(config: ConfigReader, width: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of two convolutions that subsample the sound's 128 mel bins, and of a matrix to ``width``."""
    stated = config.integers("subsampling_conv_channels")
    channels = (128, 32) if stated is None else stated
    if len(channels) != 2:
        config.fail("subsampling_conv_channels", f"{list(channels)} are not the channels of two convolutions")
    (first, second), name = channels, "subsample_conv_projection"
    return (
        ParameterTensor(f"{name}.layer0.conv.weight", (first, 1, 3, 3), "audio"),
        vector(f"{name}.layer0.norm.weight", first, "norm"),
        ParameterTensor(f"{name}.layer1.conv.weight", (second, first, 3, 3), "audio"),
        vector(f"{name}.layer1.norm.weight", second, "norm"),
        *linear(f"{name}.input_proj_linear", width, first // 4 * second, "audio", "none"),
    )


def _conformer_tensors(width: int, head_dim: int, kernel: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of one conformer layer: two half feed-forward networks around attention and a convolution.

    Source: Gemma4AudioLayer.
    """
    tensors: tuple[ParameterTensor, ...] = ()
    for half in ("feed_forward1", "feed_forward2"):
        tensors += linear(f"{half}.ffw_layer_1.linear", 4 * width, width, "audio", "none")
        tensors += linear(f"{half}.ffw_layer_2.linear", width, 4 * width, "audio", "none")
        tensors += (vector(f"{half}.pre_layer_norm.weight", width, "norm"),)
        tensors += (vector(f"{half}.post_layer_norm.weight", width, "norm"),)
    for name in ("q_proj.linear", "k_proj.linear", "v_proj.linear", "post.linear", "relative_k_proj"):
        tensors += linear(f"self_attn.{name}", width, width, "audio", "none")
    tensors += (vector("self_attn.per_dim_scale", head_dim, "audio"),)
    tensors += linear("lconv1d.linear_start.linear", 2 * width, width, "audio", "none")
    tensors += linear("lconv1d.linear_end.linear", width, width, "audio", "none")
    tensors += (ParameterTensor("lconv1d.depthwise_conv1d.weight", (width, 1, kernel), "audio"),)
    norms = ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out")
    return tensors + tuple(vector(f"{name}.weight", width, "norm") for name in norms)


NORM = "rmsnorm-fp32-weight"
SOFT_TOKENS = 280
"""Image tokens that the released checkpoints' processor fills or pads a picture to (image_processing_gemma4.py)."""
BUDGETS = (70, 140, 280, 560, 1120)
"""Image tokens that it takes instead (``max_soft_tokens``)."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the vision tower of ``model_type: gemma4``, with the audio tower that is idle next to it."""
    outputs, outer = model.language.hidden_size, model.outer
    outer.ignore("initializer_range")
    soft_tokens = outer.integer("vision_soft_tokens_per_image", default=SOFT_TOKENS)
    width = config.integer("hidden_size", default=768)
    patch = square_side(config, "patch_size", 16)
    merge = config.integer("pooling_kernel_size", default=3) ** 2
    table_rows = config.integer("position_embedding_size", default=10240)
    config.ignore(*IRRELEVANT_KEYS, "max_position_embeddings", "attention_bias", "rms_norm_eps")
    config.ignore("default_output_length", "image_seq_length", "video_seq_length", "global_head_dim")
    clipped, block = _block(config, width)
    std_buffers = (Buffers(2, width, is_fp32=False),) if config.flag("standardize") else ()
    depth = config.integer("num_hidden_layers", default=16, maximum=MAX_LAYERS)
    clip_scalars = VISION_LINEARS * CLIP_SCALARS * depth if clipped else 0
    return Vision(
        kind="gemma4:gemma4",
        hidden=width,
        blocks=((block, depth),),
        values_per_patch=3 * patch * patch,
        patches_per_token=merge,
        token_width=outputs,
        stem_tensors=(
            *linear("patch_embedder.input_proj", width, 3 * patch * patch, "vision", "none"),
            ParameterTensor("patch_embedder.position_embedding_table", (2, table_rows, width), "position"),
        ),
        projector_tensors=linear("embedding_projection", outputs, width, "projector", "none"),
        embedding_can_be_hooked=False,
        rows_per_tile=soft_tokens * merge,
        tokens_per_tile=soft_tokens,
        token_budgets=BUDGETS,
        position_bytes_per_patch=2 * 8,
        patch_side=patch,
        processor="gemma4:process",
        separator_tokens=2,
        heads=block.mixer.heads if isinstance(block.mixer, TowerAttention) else 0,
        buffers=(Buffers(clip_scalars, 1, is_fp32=False), *std_buffers),
        other_towers=read_audio(outer, outputs),
        path="vision_tower",
        projector_path="embed_vision",
    )


def _block(config: ConfigReader, width: int) -> tuple[bool, Block]:
    """Read one layer of the vision tower, and whether its linear layers are clipped."""
    heads = config.integer("num_attention_heads", default=12)
    kv_heads = config.integer("num_key_value_heads", default=heads)
    if kv_heads != heads:
        config.fail("num_key_value_heads", "a tower with fewer heads of keys than of queries has no memory model")
    head_dim = config.integer("head_dim", default=64)
    inner = config.integer("intermediate_size", default=3072)
    clipped = config.flag("use_clipped_linears")
    config.dropout("attention_dropout")
    activation = config.activation("hidden_activation", default="gelu_pytorch_tanh")
    tensors: tuple[ParameterTensor, ...] = ()
    for name in ("q_proj", "k_proj", "v_proj"):
        tensors += linear(f"self_attn.{name}.linear", heads * head_dim, width, "attention", "column")
    tensors += linear("self_attn.o_proj.linear", width, heads * head_dim, "attention", "row")
    query_norm, key_norm = (Norm(NORM, head_dim, name=f"self_attn.{name}") for name in ("q_norm", "k_norm"))
    matrices = (
        *linear("mlp.gate_proj.linear", inner, width, "mlp", "column"),
        *linear("mlp.up_proj.linear", inner, width, "mlp", "column"),
        *linear("mlp.down_proj.linear", width, inner, "mlp", "row"),
    )
    mixer = (ClippedTowerAttention if clipped else TowerAttention)(
        heads=heads,
        head_dim=head_dim,
        kind="gemma4:rotated_by_axis",
        tensors=(*tensors, *norm_tensors(query_norm), *norm_tensors(key_norm)),
        bias=False,
        query_norm=query_norm,
        key_norm=key_norm,
    )
    return clipped, Block(
        mixer=mixer,
        mlp=(ClippedMlp if clipped else Mlp)(inner, True, activation, bias=False, tensors=matrices),
        input_norm=rms_norm(width, "input_layernorm", NORM),
        mlp_norm=rms_norm(width, "pre_feedforward_layernorm", NORM),
        mixer_output_norm=rms_norm(width, "post_attention_layernorm", NORM),
        mlp_output_norm=rms_norm(width, "post_feedforward_layernorm", NORM),
    )


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``patch_embedder``, the rotary tables in the rows' dtype, and the mask of padded patches.

    Returns the rows [patches, hidden], and the values that all layers are given. No hook finds the patch embedding, as
    the class has no ``get_input_embeddings`` of its own.
    """
    tape, rows = ctx.tape, ctx.tokens
    matrix, table = vision.stem_tensors
    shape = (rows, vision.values_per_patch)
    centred = tape.value(shape, "fp32", "pixel_values - 0.5")
    pixels = tape.value(shape, "fp32", "2 * pixel_values")
    del centred
    param_dtype = ctx.setting.param_dtype
    cast_pixels = pixels if param_dtype == "fp32" else tape.value(shape, param_dtype, "pixel_values")
    del pixels
    x = linear_layer(ctx, cast_pixels, matrix)
    del cast_pixels
    x = add(tape, x, _axis_positions(ctx, table, (rows, vision.hidden)), "add positions")
    mixer = vision.blocks[0][0].mixer
    table_shape = (rows, getattr(mixer, "head_dim", 0))
    layer_arguments = [tape.value(table_shape, x.dtype, "rotary table") for _ in range(2)]
    if ctx.setting.attention not in ("flash", "flex"):
        patches_per_picture = rows // max(1, ctx.setting.images)
        dtype = x.dtype if ctx.setting.attention == "eager" else "bool"
        layer_arguments.append(
            tape.value((ctx.setting.images, 1, patches_per_picture, patches_per_picture), dtype, "padding mask")
        )
    return x, layer_arguments


def _axis_positions(ctx: Context, table: ParameterTensor, shape: tuple[int, int]) -> Value:
    """Compute the position embeddings ``where(padding, 0, x_emb + y_emb)``: ``shape`` [patches, hidden].

    ``table``: [2, positions, hidden]. Each axis is looked up in its slice ``table[axis]``; in backward, the gradient of
    a slice becomes one of the whole table.
    """
    tape = ctx.tape
    parameter = ctx.parameter(table.name, table.shape)
    trained, dtype, table_shape = parameter.requires_grad, parameter.dtype, table.shape
    clamped = tape.new((shape[0], 2), "int64", "clamped positions")
    axis_embeddings = [tape.new(shape, dtype, "embedding") for _ in range(2)]
    summed = tape.new(shape, dtype, "x_emb + y_emb")
    axis_embeddings.clear()
    out = tape.value(shape, dtype, "position embeddings")
    del summed
    padding = tape.new(shape[:1], "bool", "padding positions")

    def positions_backward(grad: Storage) -> list[Storage | None]:
        """Return the table's gradient: each axis scatters into its slice, then into zeros of the whole table."""
        masked_gradient = tape.new(shape, dtype, "where backward")
        total = None
        for _ in range(2 if trained else 0):
            slice_gradient = tape.new(table_shape[1:], dtype, "embedding backward")
            table_gradient = tape.new(table_shape, dtype, "select backward")
            del slice_gradient
            total = table_gradient
        del masked_gradient
        return [total]

    return tape.record(out, (tape.parameter(parameter),), positions_backward, saves=(clamped, padding))


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``pooler`` and ``embed_vision``: the real rows of the pooled result, standardised, in the rows' dtype."""
    tape, dtype = ctx.tape, x.dtype
    pooled = _average_pool(ctx, vision, x)
    del x
    fp32_rows = scale(tape, cast(tape, pooled, "fp32"), "sqrt(hidden)")
    del pooled
    pooler_mask = tape.new((fp32_rows.shape[0], 2), "int64", "pooler mask")
    fp32_rows = index(tape, fp32_rows, pooler_mask, fp32_rows.shape, "hidden_states[pooler_mask]")
    if Buffers(2, vision.hidden, is_fp32=False) in vision.buffers:  # `std_bias` and `std_scale`
        fp32_rows = scale(tape, shift(tape, fp32_rows, "- std_bias"), "* std_scale")
    x = cast(tape, fp32_rows, dtype)
    del fp32_rows
    ctx.extra_outputs.append(x)  # `last_hidden_state`
    x = rms_norm_pieces(tape, x, None)
    return return_image_tokens(ctx, linear_layer(ctx, x, vision.projector_tensors[0]), joins=True)


def _average_pool(ctx: Context, vision: Vision, x: Value) -> Value:
    """Pool the patches of each picture by position (``_avg_pool_by_positions``): [pictures * slots, hidden].

    The pooling is an fp32 product with one-hot weights [pictures, patches, slots] of every padded patch.
    """
    tape, dtype = ctx.tape, x.dtype
    pictures = max(1, ctx.setting.images)
    patches_per_picture = x.shape[0] // pictures
    slots, width = patches_per_picture // vision.patches_per_token, x.shape[1]
    zero_padded = _zero_padding(ctx, x)
    del x
    shape = (pictures, patches_per_picture, slots)
    one_hot_int64 = tape.new(shape, "int64", "one_hot")
    one_hot_fp32 = tape.new(shape, "fp32", "one_hot.float()")
    del one_hot_int64
    weights = tape.value(shape, "fp32", "pooling weights")
    del one_hot_fp32
    autocast = tape.autocast
    rows = cast(tape, zero_padded, "fp32")
    rows = Value(rows.storage, (pictures, patches_per_picture, width), rows.dtype, rows.origin)
    del zero_padded
    out = kernels.batched(tape, weights, rows, (pictures, slots, width), "pooling")
    del rows
    out = cast(tape, out, dtype) if not autocast else out
    is_zero = tape.new(shape, "bool", "weights == 0")
    del is_zero, weights
    return out.view(pictures * slots, width)


def _zero_padding(ctx: Context, x: Value) -> Value:
    """Zero the padded rows with ``masked_fill(padding, 0)``, which saves the mask: [rows] bool."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    out = tape.value(shape, dtype, "masked_fill")
    mask = tape.new(shape[:1], "bool", "padding positions")
    return operator(tape, out, x, "masked_fill backward", saves=(mask,))


FRAME_TOKENS = 70
"""Image tokens to which each frame of a clip is scaled and padded (video_processing_gemma4.py)."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count the patches and image tokens of a picture, or of ``frames`` of a clip, as Gemma 4's processor scales it.

    Patches are those of the whole budget; image tokens are those of the real patches.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.

    Raises:
        PictureError: both sides become nothing, or the picture has more patches than the budget.
    """
    no_limits(limits)
    budget = vision.tokens_per_tile if frames is None else FRAME_TOKENS
    patch_budget, count = budget * vision.patches_per_token, frames or 1
    rows, columns = scaled(height, width, patch_budget, vision.patch_side, math.isqrt(vision.patches_per_token))
    reason = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"
    return ProcessedPicture(
        pictures=count,
        patches=count * patch_budget,
        image_tokens=count * rows * columns // vision.patches_per_token,
        separator_tokens=count * vision.separator_tokens,
        defaults=(("max_soft_tokens", budget, reason),),
    )


def process_merged(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count the patches and image tokens of Gemma 4 without towers, whose patches are merged as pixels.

    A row is then an image token. Source: transformers 5.23 models/gemma4_unified/image_processing_gemma4_unified.py.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    merged_side = math.isqrt(vision.values_per_patch // 3) // vision.patch_side  # patches along a row's square
    patches_per_row = merged_side * merged_side
    processed = process(vision._replace(patches_per_token=patches_per_row), height, width, frames, limits)
    return processed._replace(patches=processed.patches // patches_per_row)


def scaled(height: int, width: int, patch_budget: int, patch: int, patches_per_token_side: int) -> tuple[int, int]:
    """Return the patches of each side: the largest picture of this aspect ratio within ``patch_budget`` patches.

    Each side is a multiple of the ``patches_per_token_side`` patches that one image token takes
    (get_aspect_ratio_preserving_size).
    """
    unit = patches_per_token_side * patch
    factor = math.sqrt(patch_budget * patch * patch / (height * width))
    rows, columns = int(factor * height // unit), int(factor * width // unit)
    max_side = patch_budget // (patches_per_token_side * patches_per_token_side)
    if not rows and not columns:
        raise PictureError(f"a picture of {width} x {height} pixels is refused by the processor")
    if not rows:
        rows, columns = 1, min(width // height, max_side)
    elif not columns:
        columns, rows = 1, min(height // width, max_side)
    if rows * columns * patches_per_token_side * patches_per_token_side > patch_budget:
        raise PictureError(f"a picture of {width} x {height} pixels has more patches than the processor's budget")
    return rows * patches_per_token_side, columns * patches_per_token_side


def read_unified(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the vision part of ``model_type: gemma4_unified``, which has no tower.

    One matrix projects sounds; it is idle in a step without them.
    """
    outputs, outer = model.language.hidden_size, model.outer
    outer.ignore("initializer_range")
    patch = config.integer("patch_size", default=16)
    pooling_kernel = config.integer("pooling_kernel_size", default=3)
    model_patch = config.integer("model_patch_size", default=patch * pooling_kernel)
    if model_patch != patch * pooling_kernel:
        config.fail(
            "model_patch_size", f"model_patch_size is not {patch} x {pooling_kernel}, which its class makes of it"
        )
    width = config.integer("mm_embed_dim", default=3840)
    if config.integer("output_proj_dims", default=3840) != width:
        config.fail("output_proj_dims", f"output_proj_dims is not {width}, the width of what is projected")
    table_rows = config.integer("mm_posemb_size", default=1120)
    soft_tokens = config.integer("num_soft_tokens", default=SOFT_TOKENS)
    config.ignore("model_type", "rms_norm_eps", "initializer_range")
    channels = 3 * model_patch * model_patch
    return Vision(
        kind="gemma4:gemma4_unified",
        hidden=width,
        blocks=(),
        values_per_patch=channels,
        patches_per_token=1,
        token_width=outputs,
        stem_tensors=(
            *norm_pair("patch_ln1", channels),
            *linear("patch_dense", width, channels, "vision", "none", bias=True),
            *norm_pair("patch_ln2", width),
            ParameterTensor("pos_embedding", (table_rows, 2, width), "position"),
            *norm_pair("pos_norm", width),
        ),
        projector_tensors=linear("embedding_projection", outputs, width, "projector", "none"),
        embedding_can_be_hooked=False,
        rows_per_tile=soft_tokens,
        tokens_per_tile=soft_tokens,
        token_budgets=BUDGETS,
        position_bytes_per_patch=2 * 8,
        patch_side=patch,
        processor="gemma4:process_merged",
        separator_tokens=2,
        other_towers=_audio_projection(outer, outputs),
        path="embed_vision",
        projector_path="embed_vision.multimodal_embedder",
    )


def _audio_projection(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    """Return the projection of audio embeddings, the only part of an audio tower that is counted; () without one.

    ``outputs``: the language model's hidden size.
    """
    if outer.raw("audio_config") is None:
        return ()
    config = outer.section("audio_config")
    width = config.integer("audio_embed_dim", "audio_samples_per_token", "hidden_size", "output_proj_dims", default=640)
    config.ignore("model_type", "rms_norm_eps", "initializer_range")
    projection = linear("embed_audio.embedding_projection", outputs, width, "projector", "none")
    return (OtherTower(part="audio", path="model.audio_tower.", layers_path="layers", blocks=(), tensors=projection),)


AXES = 2


def gemma4_unified_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute rows [patches, width] from padded patches: norm, matrix, norm, positions, norm.

    ``pixel_values`` and the positions are variables until the rows are computed.
    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    tape = ctx.tape
    patch_norm, (patch_matrix, patch_bias), row_norm = (
        vision.stem_tensors[:2],
        vision.stem_tensors[2:4],
        vision.stem_tensors[4:6],
    )
    table, position_norm = vision.stem_tensors[6], vision.stem_tensors[7:]
    param_dtype = ctx.setting.param_dtype
    shape = (ctx.tokens, vision.values_per_patch)
    pixels = (
        Value(None, shape, param_dtype) if param_dtype == "fp32" else tape.value(shape, param_dtype, "pixel_values")
    )
    keep_in_variable(ctx, pixels)
    x = layer_norm(ctx, pixels, patch_norm)
    del pixels
    x = linear_layer(ctx, x, patch_matrix, bias=bool(patch_bias))
    x = layer_norm(ctx, x, row_norm)
    positions = _unified_positions(ctx, table)
    keep_in_variable(ctx, positions)
    x = add(tape, x, positions, "add positions")
    del positions
    return layer_norm(ctx, x, position_norm), []


def _unified_positions(ctx: Context, table: ParameterTensor) -> Value:
    """Compute ``(pos_embedding[clamped, axes] * valid).sum(-2)``: [patches, width].

    The rows of both axes are looked up at once. Their gradient is [patches, 2, width], and is scattered into one of the
    whole table.
    """
    tape, rows = ctx.tape, ctx.tokens
    parameter = ctx.parameter(table.name, table.shape)
    dtype, width = parameter.dtype, table.shape[-1]
    clamped = tape.new((rows, AXES), "int64", "clamped positions")
    valid = tape.new((rows, AXES, 1), dtype, "valid positions")
    looked_up = tape.new((rows, AXES, width), dtype, "pos_embedding[clamped, axes]")
    masked = tape.new((rows, AXES, width), dtype, "times valid")
    del looked_up
    out = tape.value((rows, width), dtype, "sum of both axes")
    del masked
    axis_gradient = ((rows, AXES, width), dtype, "mul backward")
    return operator(
        tape, out, tape.parameter(parameter), "index backward", saves=(clamped, valid), temporaries=[axis_gradient]
    )


def gemma4_unified_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multimodal_embedder`` and select the rows that are no padding.

    The pictures' tokens are then split and joined again.
    """
    keep_in_variable(ctx, x)  # `last_hidden_state`
    x = rms_norm_pieces(ctx.tape, x, None)
    x = linear_layer(ctx, x, vision.projector_tensors[0])
    tokens = ctx.setting.image_tokens or x.shape[0]
    kept_rows = ctx.tape.new((tokens,), "int64", "non_pad_mask")
    x = index(ctx.tape, x, kept_rows, (tokens, x.shape[1]), "pooler_output[non_pad_mask]")
    return return_image_tokens(ctx, x, joins=True)


def rotated_by_axis(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute Gemma 4's vision attention: q, k and v are normed, and rotated by rows and by columns.

    Each head is split in two, each half rotated, and both joined (modeling_gemma4.py, Gemma4VisionAttention.forward and
    apply_multidimensional_rope). Linear layers may be clipped, and padded patches are masked.
    """
    tape, rows = ctx.tape, ctx.tokens
    heads, head_dim = attention.heads, attention.head_dim
    queries, keys, values, last = (t for t in attention.tensors if t.linear)
    q = matrix(ctx, attention, x, queries).view(rows, heads, head_dim)
    q = _rotate_by_axis(ctx, normalise(ctx, attention.query_norm, q, "self_attn.q_norm"))
    k = matrix(ctx, attention, x, keys).view(rows, heads, head_dim)
    k = _rotate_by_axis(ctx, normalise(ctx, attention.key_norm, k, "self_attn.k_norm"))
    v = rms_norm_pieces(tape, matrix(ctx, attention, x, values).view(rows, heads, head_dim), None)
    del x
    out = attention_kernel(ctx, attention, q, k, v, max(1, ctx.setting.images), masked=True).view(
        rows, heads * head_dim
    )
    del q, k, v
    return matrix(ctx, attention, out, last)


def _rotate_by_axis(ctx: Context, x: Value) -> Value:
    """Rotate the first half of each head by the patch's row, and the second by its column; join both with
    ``torch.cat``.
    """
    tape, shape = ctx.tape, x.shape
    half_shape = (*shape[:-1], shape[-1] // 2)
    row_half, column_half = tape.views(x, half_shape, half_shape)
    rotated = rotate_half(tape, row_half, row_half.dtype), rotate_half(tape, column_half, column_half.dtype)
    return cat(tape, rotated, shape, "cat rotary")


FORWARDS = {
    "gemma4": TowerForward(stem, project, wrapped_modules=("layers", "embedding")),
    "gemma4_unified": TowerForward(gemma4_unified_stem, gemma4_unified_project),
}
