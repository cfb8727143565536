"""InternViT: tiles of 448 pixels with a class token, layers that scale what they add (modeling_internvl.py).

InternVL: a class token in front, pixels shuffled, LayerNorm and two matrices (modeling_internvl.py).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
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
    refuse_dropout,
    tower_layer,
    tower_mlp,
    two_matrices,
)
from memcheck.families.towers.forward_parts import (
    add_position_embedding,
    drop_class_tokens,
    hold_pixel_values,
    last_hidden_state,
    layer_norm,
    patch_convolution,
    pixel_shuffle,
    prepend_class_token,
    projector_mlp,
    require_input_grads,
    return_image_tokens,
)
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Block, LayerVariables, ParameterTensor
from memcheck.models.vision import Vision

NAMES = LayerNames(
    queries="attention.q_proj",
    keys="attention.k_proj",
    values="attention.v_proj",
    output="attention.projection_layer",
    norms=("layernorm_before", "layernorm_after"),
)


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: internvl``: InternViT, whose patches are shuffled, normed and projected."""
    outer, outputs = model.outer, model.language.hidden_size
    size = read_layer_sizes(config, LayerSizes(width=1024, heads=16, inner=4096, depth=24))
    pixels = read_pixels(config, Pixels(3, side_pixels=448, patch_side=14))
    _refuse_unmodelled(config, outer)
    block = _layer(config, size, bias=config.flag("attention_bias"))
    factor, rows = int(1 / outer.number("downsample_ratio", default=0.5)) ** 2, pixels.patches + 1
    return Vision(
        kind="internvl:internvl",
        hidden=size.width,
        blocks=((block, size.depth),),
        values_per_patch=pixels.channels,
        patches_per_token=factor,
        token_width=outputs,
        stem_tensors=(
            ParameterTensor("embeddings.cls_token", (1, 1, size.width), "vision"),
            ParameterTensor("embeddings.position_embeddings", (1, rows, size.width), "position"),
            *patch_convolution_tensors("embeddings.patch_embeddings.projection", size.width, pixels),
        ),
        projector_tensors=(
            *norm_pair("layer_norm", size.width * factor),
            *two_matrices(("linear_1", "linear_2"), size.width * factor, outputs, outputs),
        ),
        embedding_can_be_hooked=True,
        closing_tensors=() if config.flag("use_mean_pooling", default=True) else norm_pair("layernorm", size.width),
        rows_per_tile=rows,
        tokens_per_tile=pixels.patches // factor,
        class_tokens_per_tile=1,
        patch_side=pixels.patch_side,
        processor="processors:process_internvl",
        separator_tokens=0,
        heads=size.heads,
        activation=outer.activation("projector_hidden_act", default="gelu"),
        path="vision_tower",
        layers_path="encoder.layer",
        projector_path="multi_modal_projector",
    )


def _refuse_unmodelled(config: ConfigReader, outer: ConfigReader) -> None:
    """Fail if the tower (``config``) or the configuration around it has an option without a memory model."""
    for key in ("hidden_dropout_prob", "attention_dropout", "projection_dropout"):
        refuse_dropout(config, key, "it is 0 in released files")
    for key in ("use_qk_norm", "use_mask_token"):
        config.refuse(key, f"{key}: true has no memory model")
    if not config.flag("use_absolute_position_embeddings", default=True):
        config.fail("use_absolute_position_embeddings", "towers without position embeddings have no memory model")
    config.ignore("layer_scale_init_value", "layer_norm_eps", "initializer_range", "chunk_size_feed_forward")
    layer = outer.raw("vision_feature_layer")
    if layer not in (None, -1) or outer.text("vision_feature_select_strategy", default="default") != "default":
        outer.fail("vision_feature_layer", "only the last layer's patches have a memory model")
    outer.ignore("image_seq_length")


def _layer(config: ConfigReader, size: LayerSizes, *, bias: bool) -> Block:
    """Build InternVLVisionLayer, whose halves are multiplied by learned vectors. ``bias``: q, k and v have biases."""
    norm = {"layer_norm": "layernorm", "rms_norm": "rmsnorm"}.get(config.text("norm_type", default="layer_norm"))
    if norm is None:
        config.fail("norm_type", "norm_type is layer_norm or rms_norm")
    scales = tuple(ParameterTensor(name, (size.width,), "mlp") for name in ("lambda_1", "lambda_2"))
    mlp = tower_mlp(size.width, size.inner, config.activation(default="gelu"), NAMES.mlp)
    block = tower_layer(
        size.width, size.heads, mlp, "separate", NAMES, bias=bias, norm=norm, extra=scales, softmax_fp32=False
    )
    return block._replace(
        lives_to_forward_end=LayerVariables(input_norm_output=False, mixer_output=True, mlp_input=False)
    )


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings``: patches, class token and positions: [rows, hidden].

    ``require_grad``: make the output of ``patch_embeddings`` require a gradient, as ``enable_input_require_grads``
    does.
    """
    token, table, weight, bias = vision.stem_tensors
    patches = ctx.tokens - ctx.setting.images * vision.class_tokens_per_tile
    pixels = (
        hold_pixel_values(ctx, vision, patches, ctx.setting.param_dtype) if ctx.setting.param_dtype != "fp32" else None
    )
    x, live = require_input_grads(
        patch_convolution(ctx, vision, patches, weight, bias, pixels=pixels), require_grad=require_grad
    )
    return add_position_embedding(ctx, prepend_class_token(ctx, x, token, ctx.tokens), table, looked_up=False), live


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``pixel_shuffle`` and ``multi_modal_projector``: image tokens [rows / merge, text hidden]."""
    x = drop_class_tokens(ctx, vision, last_hidden_state(ctx, vision, x))
    x = layer_norm(ctx, pixel_shuffle(ctx, vision, x), vision.projector_tensors)
    return return_image_tokens(ctx, projector_mlp(ctx, vision, x, vision.projector_tensors[2:]), joins=False)


FORWARDS = {
    "internvl": TowerForward(stem, project),
}
"""By name, the forward passes of a kind of tower."""
