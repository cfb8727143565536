"""Parakeet's encoder, a conformer: what is resident of it, and of its projector, in a step without sounds.

modeling_parakeet.py of transformers 5.23.

Nemotron 3 Nano Omni: C-RADIO on patches of all pictures in one row, merged by fours, around Nemotron-H.

modeling_nemotron_h_omni.py, modeling_radio.py of transformers 5.23. Its tower for sounds is counted, and never runs.

C-RADIO around Nemotron-H: patches multiplied by a matrix, a resized grid of positions, learned rows in front.

modeling_radio.py (RadioPatchEmbeddings, RadioModel._forward_packed) and modeling_nemotron_h_omni.py
(NemotronH_Omni_Reasoning_V3.get_image_features) of transformers 5.23.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.modules import rms_norm_pieces
from memcheck.autograd.operator import add, copy, index
from memcheck.autograd.tensor import Storage, Value, ceil_div, round_up
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    LayerNames,
    TowerForward,
    idle_layer,
    idle_projector,
    norm_pair,
    refuse_dropout,
    require_divisible_heads,
    tower_layer,
    tower_mlp,
    two_matrices,
)
from memcheck.families.towers.attention import attention_kernel, attention_per_picture, output_projection, projections
from memcheck.families.towers.forward_parts import (
    cat_image_tokens,
    hold_pixel_values,
    keep_in_variable,
    layer_norm,
    linear_layer,
    pixel_shuffle,
    prepend_class_token,
    projector_mlp,
)
from memcheck.models.decoder import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import Buffers, OtherTower, TowerAttention, Vision

IRRELEVANT_AUDIO_KEYS = (
    "model_type", "hidden_act", "initializer_range", "dropout", "dropout_positions", "layerdrop", "scale_input",
    "activation_dropout", "attention_dropout", "max_position_embeddings", "num_key_value_heads", "sampling_rate",
)  # fmt: skip
NORMS = ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out")


def read_sounds(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    """Read the tower of ``audio_config`` and its projector, which are idle; empty where that is null or absent."""
    if outer.raw("audio_config") is None:
        return ()
    config = outer.section("audio_config")
    width, heads = config.integer("hidden_size", default=1024), config.integer("num_attention_heads", default=8)
    require_divisible_heads(config, width, heads)
    depth = config.integer("num_hidden_layers", default=24, maximum=MAX_LAYERS)
    layer = idle_layer(_conformer_tensors(config, width))
    projector_width = config.integer("projection_hidden_size", default=4096)
    projector_bias = config.flag("projection_bias")
    stem = _subsampling(config, width)
    config.ignore(*IRRELEVANT_AUDIO_KEYS)
    projector = (
        vector("embed_audio.layer_norm.weight", width, "norm"),
        *two_matrices(
            ("embed_audio.linear_1", "embed_audio.linear_2"), width, projector_width, outputs, bias=projector_bias
        ),
    )
    tower = OtherTower(
        part="audio",
        path="audio_tower.",
        layers_path="layers",
        blocks=((layer, depth),),
        tensors=stem,
        buffers=(Buffers(1, width // 2),),
    )
    return (tower, idle_projector(projector))


def _conformer_tensors(config: ConfigReader, width: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of ParakeetEncoderBlock: half a feed-forward, attention, convolutions, the other half."""
    inner = config.integer("intermediate_size", default=4096)
    bias, conv_bias = config.flag("attention_bias"), config.flag("convolution_bias", default=True)
    kernel = config.integer("conv_kernel_size", default=9)
    tensors: tuple[ParameterTensor, ...] = ()
    for half in ("feed_forward1", "feed_forward2"):
        tensors += linear(f"{half}.linear1", inner, width, "audio", "none", bias=bias)
        tensors += linear(f"{half}.linear2", width, inner, "audio", "none", bias=bias)
    for letter in "qkvo":
        tensors += linear(f"self_attn.{letter}_proj", width, width, "audio", "none", bias=bias)
    tensors += linear("self_attn.relative_k_proj", width, width, "audio", "none")
    tensors += tuple(vector(f"self_attn.bias_{letter}", width, "audio") for letter in "uv")
    for name, shape in (
        ("pointwise_conv1", (2 * width, width, 1)),
        ("depthwise_conv", (width, 1, kernel)),
        ("pointwise_conv2", (width, width, 1)),
    ):
        tensors += (ParameterTensor(f"conv.{name}.weight", shape, "audio"),)
        tensors += (vector(f"conv.{name}.bias", shape[0], "audio"),) if conv_bias else ()
    for name in ("conv.norm", *NORMS):
        tensors += norm_pair(name, width)
    return tensors


def _subsampling(config: ConfigReader, width: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of the subsampling of sounds: a convolution, pairs of depthwise and 1 x 1 convolutions, and a
    matrix.
    """
    channels = config.integer("subsampling_conv_channels", default=256)
    kernel = config.integer("subsampling_conv_kernel_size", default=3)
    stride = config.integer("subsampling_conv_stride", default=2)
    factor, mel_bins = config.integer("subsampling_factor", default=8), config.integer("num_mel_bins", default=80)
    layers = factor.bit_length() - 1
    path, tensors = "subsampling.layers", list[ParameterTensor]()

    def convolution(index: int, colours: int, side: int) -> None:
        tensors.append(ParameterTensor(f"{path}.{index}.weight", (channels, colours, side, side), "audio"))
        tensors.append(vector(f"{path}.{index}.bias", channels, "audio"))

    convolution(0, 1, kernel)
    for layer in range(layers - 1):
        convolution(2 + 3 * layer, 1, kernel)
        convolution(3 + 3 * layer, channels, 1)
    flattened = channels * (mel_bins // stride**layers)
    return (*tensors, *linear("subsampling.linear", width, flattened, "audio", "none", bias=True))


NAMES = LayerNames(
    queries="attention.q_proj",
    keys="attention.k_proj",
    values="attention.v_proj",
    output="attention.o_proj",
    norms=("norm1", "norm2"),
)
LAYER_SCALES = ("layer_scale1.lambda1", "layer_scale2.lambda1")
IRRELEVANT_KEYS = (
    "model_type", "initializer_range", "image_size", "layerscale_value", "layer_norm_eps", "norm_mean", "norm_std",
    "summary_idxs", "patch_dim", "video_patch_dim", "hidden_dropout_prob",
)  # fmt: skip
"""The input conditioner is taken out of the tower, and no dropout has the second probability."""


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: nemotron_h_omni``: NVIDIA's RADIO vision tower, and an audio tower that is
    idle.
    """
    outer, outputs = model.outer, model.language.hidden_size
    width = config.integer("hidden_size", default=1280)
    heads = config.integer("num_attention_heads", default=16)
    require_divisible_heads(config, width, heads)
    depth = config.integer("num_hidden_layers", default=32, maximum=MAX_LAYERS)
    patch, pixel_channels = config.integer("patch_size", default=16), config.integer("num_channels", default=3)
    grid_side = config.integer("max_img_size", default=2048) // patch
    classes = config.integer("num_cls_tokens", default=3) + config.integer("num_registers", default=7, minimum=0)
    frames = config.integer("video_temporal_patch_size", default=2)
    config.ignore(*IRRELEVANT_KEYS)
    for key in ("attention_probs_dropout_prob", "drop_path_rate"):
        refuse_dropout(config, key, "it is 0 in released files")
    if outer.integer("vision_hidden_size", default=1280) != width:
        outer.fail("vision_hidden_size", f"vision_hidden_size is not the tower's width {width}")
    outer.ignore("force_image_size", "video_pruning_rate", "video_temporal_patch_size")
    merge = int(1 / outer.number("downsample_ratio", default=0.5)) ** 2
    projector_width = outer.integer("projector_hidden_size", default=4096)
    patch_elements = pixel_channels * patch * patch
    text = outer.raw("text_config")
    has_final_norm = isinstance(text, dict) and bool(text.get("num_nextn_predict_layers"))
    return Vision(
        kind="radio:radio",
        hidden=width,
        blocks=((_layer(config, width, heads), depth),),
        values_per_patch=patch_elements,
        patches_per_token=merge,
        token_width=outputs,
        stem_tensors=(
            *linear("embeddings.patch_projection", width, patch_elements, "vision", "none"),
            ParameterTensor("embeddings.position_embedding", (1, grid_side * grid_side, width), "position"),
            ParameterTensor("embeddings.cls_register_token", (classes, width), "vision"),
        ),
        projector_tensors=(
            ParameterTensor("layer_norm.weight", (width * merge,), "norm"),
            *two_matrices(("linear_1", "linear_2"), width * merge, projector_width, outputs, bias=False),
        ),
        embedding_can_be_hooked=False,
        closing_tensors=norm_pair("vision_final_layernorm", width) if has_final_norm else (),
        unused_tensors=linear("embeddings.video_patch_projection", width, frames * patch_elements, "vision", "none"),
        class_tokens_per_tile=classes,
        returns_image_tokens=False,
        outputs_live_until_loss=True,
        other_towers=read_sounds(outer, outputs),
        patch_side=patch,
        heads=heads,
        activation="relu2",
        path="vision_model",
        without_model_prefix=True,
        layers_path="encoder.layer",
        projector_path="multi_modal_projector",
    )


def _layer(config: ConfigReader, width: int, heads: int) -> Block:
    """Build RadioLayer, whose halves are multiplied by learned vectors; ``use_swiglu_ffn`` gates its network."""
    inner, activation = int(width * config.number("mlp_ratio", default=4.0)), config.activation(default="gelu")
    mlp = tower_mlp(width, inner, activation, NAMES.mlp)
    if config.flag("use_swiglu_ffn"):
        swiglu_width = round_up(int(inner * 2 / 3), 8)
        mlp = tower_mlp(width, swiglu_width, "silu", ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
    scales = tuple(ParameterTensor(name, (width,), "mlp") for name in LAYER_SCALES)
    bias = config.flag("qkv_bias", default=True)
    return tower_layer(width, heads, mlp, "radio:radio_attention", NAMES, bias=bias, extra=scales, softmax_fp32=False)


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings`` of the patches of all pictures: [patches and class tokens, hidden]. No hook finds this
    module.
    """
    weight, table, class_tokens = vision.stem_tensors
    patches = _patch_count(ctx, vision)
    params, shape = ctx.setting.param_dtype, (patches, vision.values_per_patch)
    pixels = Value(None, shape, "fp32") if params == "fp32" else hold_pixel_values(ctx, vision, patches, params)
    x = linear_layer(ctx, pixels, weight)
    del pixels
    rows = add(ctx.tape, x, grid_positions(ctx, table, patches, x.dtype), "add positions")
    joined = prepend_class_token(ctx, rows, class_tokens, ctx.tokens)
    del x
    return joined, []


def grid_positions(ctx: Context, table: ParameterTensor, rows: int, dtype: str) -> Value:
    """Compute ``interpolate_pos_encoding`` of every picture: [rows, hidden].

    The grid is resized in fp32, cast to ``dtype``, repeated and concatenated. Each picture's gradient has the size of
    the whole table.
    """
    tape, (positions, width) = ctx.tape, table.shape[-2:]
    pictures = max(1, ctx.setting.images)
    rows_per_picture = ceil_div(rows, pictures)
    parameter = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    param_dtype, table_shape, trained = parameter.dtype, (positions, width), parameter.requires_grad
    repeated = []
    for _ in range(pictures):
        grid = tape.new(table_shape, "fp32", "position grid in fp32") if param_dtype != "fp32" else None
        resized = tape.new((rows_per_picture, width), "fp32", "interpolate")
        del grid
        narrow = tape.new((rows_per_picture, width), dtype, "to") if dtype != "fp32" else resized
        del resized
        repeated.append(tape.new((rows_per_picture, width), dtype, "repeat"))
        del narrow
    out = tape.value((rows, width), dtype, "cat pictures")
    repeated.clear()

    def positions_backward(grad: Storage) -> list[Storage | None]:
        """Return the table's gradient: the sum of one for each picture, which is interpolated in fp32."""
        total = None
        for _ in range(pictures if trained else 0):
            fp32_gradient = tape.new((rows_per_picture, width), "fp32", "to backward")
            table_gradient = tape.new(table_shape, "fp32", "interpolate backward")
            del fp32_gradient
            narrow = tape.new(table_shape, param_dtype, "to backward") if param_dtype != "fp32" else table_gradient
            del table_gradient
            total = (
                narrow
                if total is None or not tape.dtensor_gradients
                else tape.new(table.shape, param_dtype, "add gradients")
            )
            del narrow
        return [total]

    return tape.record(out, (tape.parameter(parameter),), positions_backward)


def radio_attention(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute RadioAttention with a matrix each for q, k and v of the rows of all pictures.

    One picture is a plain sequence. Eager attention writes the probabilities of several pictures into one [heads, rows,
    rows] tensor, a variable of the layer.
    """
    q, k, v = projections(ctx, attention, x)
    del x
    rows = ctx.tokens
    if ctx.setting.images < 2:
        return output_projection(ctx, attention, attention_kernel(ctx, attention, q, k, v, 1))
    if ctx.setting.attention == "eager":
        ctx.unused_outputs.append(ctx.tape.value((attention.heads, rows, rows), q.dtype, "attention probabilities"))
    return attention_per_picture(ctx, attention, q, k, v)


def _patch_count(ctx: Context, vision: Vision) -> int:
    """Number of patches of all pictures, without class tokens and registers."""
    return ctx.tokens - max(1, ctx.setting.images) * vision.class_tokens_per_tile


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``multi_modal_projector``: select the patches' rows, shuffle pixels picture by picture, norm, two
    matrices.
    """
    tape, patches = ctx.tape, _patch_count(ctx, vision)
    keep_in_variable(ctx, x)  # `last_hidden_state`
    picked_rows = index(tape, x, tape.new((patches,), "int64", "rows of patches"), (patches, x.shape[1]))
    del x
    rows = copy(tape, pixel_shuffle(ctx, vision, layer_norm(ctx, picked_rows, vision.closing_tensors)), "cat pictures")
    norm, *matrices = vision.projector_tensors
    weight = ctx.parameter(norm.name.removesuffix(".weight"), norm.shape)
    normed = rms_norm_pieces(tape, rows, weight, weight_in_fp32=True)
    del picked_rows
    return cat_image_tokens(ctx, projector_mlp(ctx, vision, normed, tuple(matrices)))


FORWARDS = {
    "radio": TowerForward(stem, project),
}
"""By name, the forward passes of a kind of tower."""
