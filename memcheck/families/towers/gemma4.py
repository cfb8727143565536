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

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, cat, scale, shift
from memcheck.autograd.indexing import index
from memcheck.autograd.modules import matrix, normalise
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.rotary import rotate_half
from memcheck.autograd.tensor import Storage, Value
from memcheck.families.multimodal import AroundTower
from memcheck.families.pictures import Limits, PictureError, ProcessedPicture, no_limits
from memcheck.families.tower import TowerForward
from memcheck.families.towers.attention import attend
from memcheck.families.towers.forward_parts import given_out, layer_norm, linear_layer
from memcheck.families.towers.parts import HARMLESS, norm_pair, square
from memcheck.models.feed_forward_types import ClippedMlp
from memcheck.models.parts.decoder import rms_norm
from memcheck.models.parts.matrices import linear, norm_tensors, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, Mlp, Norm, ParameterTensor
from memcheck.models.vision import Buffers, ClippedTowerAttention, OtherTower, TowerAttention, Vision


def read_audio(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    """The tower of Gemma 4's ``audio_config`` and its projection; none where that is null or absent."""
    if outer.raw("audio_config") is None:
        return ()
    config = outer.section("audio_config")
    width = config.integer("hidden_size", default=1024)
    heads = config.integer("num_attention_heads", default=8)
    if width % heads:
        config.fail("num_attention_heads", f"the tower's width {width} is no multiple of {heads} heads")
    made = config.integer("output_proj_dims", default=1536)
    first, second = _channels(config)
    kernel = config.integer("conv_kernel_size", default=5)
    config.ignore(
        "model_type", "hidden_act", "residual_weight", "attention_chunk_size", "attention_context_left",
        "attention_context_right", "attention_logit_cap", "attention_invalid_logits_value", "gradient_clipping",
        "initializer_range",
    )  # fmt: skip
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    clipped = config.flag("use_clipped_linears", default=True)
    tensors = (
        ParameterTensor("subsample_conv_projection.layer0.conv.weight", (first, 1, 3, 3), "audio"),
        vector("subsample_conv_projection.layer0.norm.weight", first, "norm"),
        ParameterTensor("subsample_conv_projection.layer1.conv.weight", (second, first, 3, 3), "audio"),
        vector("subsample_conv_projection.layer1.norm.weight", second, "norm"),
        *linear("subsample_conv_projection.input_proj_linear", width, first // 4 * second, "audio", "none"),
        *linear("output_proj", made, width, "audio", "none", bias=True),
        *linear("embed_audio.embedding_projection", outputs, made, "projector", "none"),
    )
    block = Block(
        mixer=None,
        mlp=None,
        input_norm=None,
        mlp_norm=None,
        extra_tensors=_layer(width, width // heads, kernel),
    )
    scalars = 10 * 4 * depth if clipped else 0
    return (
        OtherTower(
            part="audio",
            path="model.audio_tower.",
            layers="layers",
            blocks=((block, depth),),
            tensors=tensors,
            buffers=(Buffers(scalars, 1, fp32=False),),
        ),
    )


def _channels(config: ConfigReader) -> tuple[int, int]:
    stated = config.integers("subsampling_conv_channels")
    if stated is None:
        return 128, 32
    if len(stated) != 2:  # two convolutions
        config.fail("subsampling_conv_channels", f"{list(stated)} are not the channels of two convolutions")
    return stated[0], stated[1]


def _layer(width: int, head_dim: int, kernel: int) -> tuple[ParameterTensor, ...]:
    """Two halves of a feed-forward network around attention and a convolution (Gemma4AudioLayer)."""
    found: tuple[ParameterTensor, ...] = ()
    for half in ("feed_forward1", "feed_forward2"):
        found += linear(f"{half}.ffw_layer_1.linear", 4 * width, width, "audio", "none")
        found += linear(f"{half}.ffw_layer_2.linear", width, 4 * width, "audio", "none")
        found += (vector(f"{half}.pre_layer_norm.weight", width, "norm"),)
        found += (vector(f"{half}.post_layer_norm.weight", width, "norm"),)
    for name in ("q_proj.linear", "k_proj.linear", "v_proj.linear", "post.linear", "relative_k_proj"):
        found += linear(f"self_attn.{name}", width, width, "audio", "none")
    found += (vector("self_attn.per_dim_scale", head_dim, "audio"),)
    found += linear("lconv1d.linear_start.linear", 2 * width, width, "audio", "none")
    found += linear("lconv1d.linear_end.linear", width, width, "audio", "none")
    found += (ParameterTensor("lconv1d.depthwise_conv1d.weight", (width, 1, kernel), "audio"),)
    norms = ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out")
    return found + tuple(vector(f"{name}.weight", width, "norm") for name in norms)


NORM = "rmsnorm-fp32-weight"
SOFT_TOKENS = 280
"""Image tokens that the released checkpoints' processor fills or pads a picture to (image_processing_gemma4.py)."""
BUDGETS = (70, 140, 280, 560, 1120)
"""Image tokens that it takes instead (``max_soft_tokens``)."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: gemma4``."""
    outputs, outer = around.language.hidden_size, around.outer
    outer.ignore("initializer_range")
    soft_tokens = outer.integer("vision_soft_tokens_per_image", default=SOFT_TOKENS)
    width = config.integer("hidden_size", default=768)
    patch = square(config, "patch_size", 16)
    merge = config.integer("pooling_kernel_size", default=3) ** 2
    table = config.integer("position_embedding_size", default=10240)
    config.ignore(*HARMLESS, "max_position_embeddings", "attention_bias", "rms_norm_eps")
    config.ignore("default_output_length", "image_seq_length", "video_seq_length", "global_head_dim")
    clipped, block = _block(config, width)
    shifted, of_rows = config.flag("standardize"), Buffers(2, width, fp32=False)
    depth = config.integer("num_hidden_layers", default=16, maximum=MAX_LAYERS)
    stem = (
        *linear("patch_embedder.input_proj", width, 3 * patch * patch, "vision", "none"),
        ParameterTensor("patch_embedder.position_embedding_table", (2, table, width), "position"),
    )
    return Vision(
        kind="gemma4:gemma4",
        hidden=width,
        blocks=((block, depth),),
        channels=3 * patch * patch,
        merge=merge,
        outputs=outputs,
        stem=stem,
        projector=linear("embedding_projection", outputs, width, "projector", "none"),
        hooked=False,
        tile=soft_tokens * merge,
        tile_tokens=soft_tokens,
        budgets=BUDGETS,
        position_bytes=2 * 8,
        patch=patch,
        processor="gemma4:process",
        separators=2,
        heads=block.mixer.heads if isinstance(block.mixer, TowerAttention) else 0,
        buffers=(Buffers(7 * 4 * depth if clipped else 0, 1, fp32=False), *((of_rows,) if shifted else ())),
        others=read_audio(outer, outputs),
        path="vision_tower",
        projector_path="embed_vision",
    )


def _block(config: ConfigReader, width: int) -> tuple[bool, Block]:
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
        mlp=(ClippedMlp if clipped else Mlp)(inner, True, activation, tensors=matrices),
        input_norm=rms_norm(width, "input_layernorm", NORM),
        mlp_norm=rms_norm(width, "pre_feedforward_layernorm", NORM),
        mixer_output_norm=rms_norm(width, "post_attention_layernorm", NORM),
        mlp_output_norm=rms_norm(width, "post_feedforward_layernorm", NORM),
    )


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embedder``, the rotary tables in the rows' dtype, and the mask of padded rows, which layers are given.

    No hook finds the patch embedding: the class has no ``get_input_embeddings`` of its own.
    """
    tape, rows = ctx.tape, ctx.tokens
    matrix, table = vision.stem
    shape = (rows, vision.channels)
    shifted = tape.value(shape, "fp32", "pixel_values - 0.5")
    pixels = tape.value(shape, "fp32", "2 * pixel_values")
    del shifted
    target = ctx.setting.params
    narrow = pixels if target == "fp32" else tape.value(shape, target, "pixel_values")
    del pixels
    x = linear_layer(ctx, narrow, matrix)
    del narrow
    x = add(tape, x, _positions(ctx, table, (rows, vision.hidden)), "add positions")
    width = vision.blocks[0][0].mixer
    tables = (rows, getattr(width, "head_dim", 0))
    held = [tape.value(tables, x.dtype, "rotary table") for _ in range(2)]
    if ctx.setting.attention not in ("flash", "flex"):
        each = rows // max(1, ctx.setting.pictures)
        dtype = x.dtype if ctx.setting.attention == "eager" else "bool"
        held.append(tape.value((ctx.setting.pictures, 1, each, each), dtype, "padding mask"))
    return x, held


def _positions(ctx: Context, table: ParameterTensor, shape: tuple[int, int]) -> Value:
    """``where(padding, 0, x_emb + y_emb)``: both are looked up in a slice of one table, each of which has a gradient
    as large as the table.
    """
    tape = ctx.tape
    p = ctx.parameter(table.name, table.shape)
    learns, dtype, whole = p.requires_grad, p.dtype, table.shape
    clamped = tape.new((shape[0], 2), "int64", "clamped positions")
    parts = [tape.new(shape, dtype, "embedding") for _ in range(2)]
    summed = tape.new(shape, dtype, "x_emb + y_emb")
    parts.clear()
    out = tape.value(shape, dtype, "position embeddings")
    del summed
    padding = tape.new(shape[:1], "bool", "padding positions")

    def run(grad: Storage) -> list[Storage | None]:
        masked = tape.new(shape, dtype, "where backward")
        total = None
        for _ in range(2 if learns else 0):
            rows = tape.new(whole[1:], dtype, "embedding backward")
            slice = tape.new(whole, dtype, "select backward")
            del rows
            total = slice
        del masked
        return [total]

    return tape.record(out, (tape.parameter(p),), run, saves=(clamped, padding))


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``pooler``, the real rows of its result, standardised, in the rows' dtype; then ``embed_vision``."""
    tape, dtype = ctx.tape, x.dtype
    pooled = _pooled(ctx, vision, x)
    del x
    wide = scale(tape, cast(tape, pooled, "fp32"), "sqrt(hidden)")
    del pooled
    where = tape.new((wide.shape[0], 2), "int64", "pooler mask")
    wide = index(tape, wide, where, wide.shape, "hidden_states[pooler_mask]")
    if Buffers(2, vision.hidden, fp32=False) in vision.buffers:  # `std_bias` and `std_scale`
        wide = scale(tape, shift(tape, wide, "- std_bias"), "* std_scale")
    x = cast(tape, wide, dtype)
    del wide
    ctx.returned.append(x)  # `last_hidden_state`
    x = rms_norm_pieces(tape, x, None)
    return given_out(ctx, linear_layer(ctx, x, vision.projector[0]), joins=True)


def _pooled(ctx: Context, vision: Vision, x: Value) -> Value:
    """``_avg_pool_by_positions``: an fp32 product with the one-hot weights of every padded row of a picture."""
    tape, dtype = ctx.tape, x.dtype
    pictures = max(1, ctx.setting.pictures)
    each = x.shape[0] // pictures
    slots, width = each // vision.merge, x.shape[1]
    masked = _filled(ctx, x)
    del x
    shape = (pictures, each, slots)
    places = tape.new(shape, "int64", "one_hot")
    ones = tape.new(shape, "fp32", "one_hot.float()")
    del places
    weights = tape.value(shape, "fp32", "pooling weights")
    del ones
    autocast = tape.autocast
    rows = cast(tape, masked, "fp32")
    rows = Value(rows.storage, (pictures, each, width), rows.dtype, rows.origin)
    del masked
    out = kernels.batched(tape, weights, rows, (pictures, slots, width), "pooling")
    del rows
    out = cast(tape, out, dtype) if not autocast else out
    compared = tape.new(shape, "bool", "weights == 0")
    del compared, weights
    return out.view(pictures * slots, width)


def _filled(ctx: Context, x: Value) -> Value:
    """``masked_fill(padding, 0)``: keeps the mask of rows."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    out = tape.value(shape, dtype, "masked_fill")
    mask = tape.new(shape[:1], "bool", "padding positions")
    return operator(tape, out, x, "masked_fill backward", saves=(mask,))


FRAME_TOKENS = 70
"""Image tokens to which each frame of a clip is scaled and padded (video_processing_gemma4.py)."""


def process(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Rows of the whole budget, and the image tokens of the patches that are real.

    Raises:
        PictureError: both sides become nothing, or the picture has more patches than the budget.
    """
    no_limits(limits)
    budget = vision.tile_tokens if frames is None else FRAME_TOKENS
    each, count = budget * vision.merge, frames or 1
    rows, columns = scaled(height, width, each, vision.patch, math.isqrt(vision.merge))
    why = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"
    return ProcessedPicture(
        pictures=count,
        patches=count * each,
        tokens=count * rows * columns // vision.merge,
        separators=count * vision.separators,
        defaults=(("max_soft_tokens", budget, why),),
    )


def process_merged(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Gemma 4 without towers: patches are merged as pixels, so that a row is an image token.

    transformers 5.23 models/gemma4_unified/image_processing_gemma4_unified.py.
    """
    pooled = math.isqrt(vision.channels // 3) // vision.patch
    several = pooled * pooled
    found = process(vision._replace(merge=several), height, width, frames, limits)
    return found._replace(patches=found.patches // several)


def scaled(height: int, width: int, most: int, patch: int, pooled: int) -> tuple[int, int]:
    """Patches in each direction: the largest that fit, in multiples of what is pooled."""
    unit = pooled * patch
    factor = math.sqrt(most * patch * patch / (height * width))
    tall, wide = int(factor * height // unit), int(factor * width // unit)
    longest = most // (pooled * pooled)
    if not tall and not wide:
        raise PictureError(f"a picture of {width} x {height} pixels is refused by the processor")
    if not tall:
        tall, wide = 1, min(width // height, longest)
    elif not wide:
        wide, tall = 1, min(height // width, longest)
    if tall * wide * pooled * pooled > most:
        raise PictureError(f"a picture of {width} x {height} pixels has more patches than the processor's budget")
    return tall * pooled, wide * pooled


def read_unified(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: gemma4_unified``. Sounds are projected by one matrix, which is idle in a step without them."""
    outputs, outer = around.language.hidden_size, around.outer
    outer.ignore("initializer_range")
    patch = config.integer("patch_size", default=16)
    pooled = config.integer("pooling_kernel_size", default=3)
    side = config.integer("model_patch_size", default=patch * pooled)
    if side != patch * pooled:
        config.fail("model_patch_size", f"model_patch_size is not {patch} x {pooled}, which its class makes of it")
    width = config.integer("mm_embed_dim", default=3840)
    if config.integer("output_proj_dims", default=3840) != width:
        config.fail("output_proj_dims", f"output_proj_dims is not {width}, the width of what is projected")
    table = config.integer("mm_posemb_size", default=1120)
    soft_tokens = config.integer("num_soft_tokens", default=SOFT_TOKENS)
    config.ignore("model_type", "rms_norm_eps", "initializer_range")
    channels = 3 * side * side
    return Vision(
        kind="gemma4:gemma4_unified",
        hidden=width,
        blocks=(),
        channels=channels,
        merge=1,
        outputs=outputs,
        stem=(
            *norm_pair("patch_ln1", channels),
            *linear("patch_dense", width, channels, "vision", "none", bias=True),
            *norm_pair("patch_ln2", width),
            ParameterTensor("pos_embedding", (table, 2, width), "position"),
            *norm_pair("pos_norm", width),
        ),
        projector=linear("embedding_projection", outputs, width, "projector", "none"),
        hooked=False,
        tile=soft_tokens,
        tile_tokens=soft_tokens,
        budgets=BUDGETS,
        position_bytes=2 * 8,
        patch=patch,
        processor="gemma4:process_merged",
        separators=2,
        others=_sounds(outer, outputs),
        path="embed_vision",
        projector_path="embed_vision.multimodal_embedder",
    )


def _sounds(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    if outer.raw("audio_config") is None:
        return ()
    config = outer.section("audio_config")
    width = config.integer("audio_embed_dim", "audio_samples_per_token", "hidden_size", "output_proj_dims", default=640)
    config.ignore("model_type", "rms_norm_eps", "initializer_range")
    projection = linear("embed_audio.embedding_projection", outputs, width, "projector", "none")
    return (OtherTower(part="audio", path="model.audio_tower.", layers="layers", blocks=(), tensors=projection),)


AXES = 2


def gemma4_unified_stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """What makes rows of padded patches. ``pixel_values`` and the positions are variables until all of it is done."""
    tape = ctx.tape
    weight, bias, dense, offset, weight_2, bias_2, table, weight_3, bias_3 = vision.stem
    target = ctx.setting.params
    shape = (ctx.tokens, vision.channels)
    pixels = Value(None, shape, target) if target == "fp32" else tape.value(shape, target, "pixel_values")
    ctx.returned.append(Value(pixels.storage, shape, target))
    x = layer_norm(ctx, pixels, (weight, bias))
    del pixels
    x = linear_layer(ctx, x, dense, bias=bool(offset))
    x = layer_norm(ctx, x, (weight_2, bias_2))
    positions = gemma4_unified__positions(ctx, table)
    ctx.returned.append(Value(positions.storage, positions.shape, positions.dtype))
    x = add(tape, x, positions, "add positions")
    del positions
    return layer_norm(ctx, x, (weight_3, bias_3)), []


def gemma4_unified__positions(ctx: Context, table: ParameterTensor) -> Value:
    """``(pos_embedding[clamped, axes] * valid).sum(-2)``: both axes' rows are looked up at once; their gradient is made
    as wide, and scattered into one of the whole table.
    """
    tape, rows = ctx.tape, ctx.tokens
    p = ctx.parameter(table.name, table.shape)
    dtype, width = p.dtype, table.shape[-1]
    clamped = tape.new((rows, AXES), "int64", "clamped positions")
    valid = tape.new((rows, AXES, 1), dtype, "valid positions")
    found = tape.new((rows, AXES, width), dtype, "pos_embedding[clamped, axes]")
    masked = tape.new((rows, AXES, width), dtype, "times valid")
    del found
    out = tape.value((rows, width), dtype, "sum of both axes")
    del masked
    wide = ((rows, AXES, width), dtype, "mul backward")
    return operator(tape, out, tape.parameter(p), "index backward", saves=(clamped, valid), temporaries=[wide])


def gemma4_unified_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multimodal_embedder``, and the rows that are no padding; their tokens are split and put together again."""
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    x = rms_norm_pieces(ctx.tape, x, None)
    x = linear_layer(ctx, x, vision.projector[0])
    tokens = ctx.setting.image_tokens or x.shape[0]
    where = ctx.tape.new((tokens,), "int64", "non_pad_mask")
    x = index(ctx.tape, x, where, (tokens, x.shape[1]), "pooler_output[non_pad_mask]")
    return given_out(ctx, x, joins=True)


def rotated_by_axis(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Gemma 4: normed q, k and v, rows and columns rotated apart, and a padding mask; projections may be clamped.

    modeling_gemma4.py, Gemma4VisionAttention.forward and apply_multidimensional_rope: each head is split in two, each
    half rotated, and both put together.
    """
    tape, rows, heads, d = ctx.tape, ctx.tokens, a.heads, a.head_dim
    queries, keys, values, last = (t for t in a.tensors if t.linear)
    q = matrix(ctx, a, x, queries).view(rows, heads, d)
    q = _rotated_apart(ctx, normalise(ctx, a.query_norm, q, "self_attn.q_norm"))
    k = matrix(ctx, a, x, keys).view(rows, heads, d)
    k = _rotated_apart(ctx, normalise(ctx, a.key_norm, k, "self_attn.k_norm"))
    v = rms_norm_pieces(tape, matrix(ctx, a, x, values).view(rows, heads, d), None)
    del x
    out = attend(ctx, q, k, v, max(1, ctx.setting.pictures), masked=True).view(rows, heads * d)
    del q, k, v
    return matrix(ctx, a, out, last)


def _rotated_apart(ctx: Context, x: Value) -> Value:
    tape, shape = ctx.tape, x.shape
    half = (*shape[:-1], shape[-1] // 2)
    first, second = tape.views(x, half, half)
    turned = rotate_half(tape, first, first.dtype), rotate_half(tape, second, second.dtype)
    return cat(tape, turned, shape, "cat rotary")


FORWARDS = {
    "gemma4": TowerForward(stem, project, wrapped=("layers", "embedding")),
    "gemma4_unified": TowerForward(gemma4_unified_stem, gemma4_unified_project),
}
