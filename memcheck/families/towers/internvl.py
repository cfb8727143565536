"""InternViT: tiles of 448 pixels with a class token, layers that scale what they add (modeling_internvl.py).

InternVL: a class token in front, pixels shuffled, LayerNorm and two matrices (modeling_internvl.py).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    LayerNames,
    TowerForward,
    norm_pair,
    require_divisible_heads,
    square_side,
    tower_layer,
    tower_mlp,
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
from memcheck.models.decoder import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import LayerVariables, ParameterTensor
from memcheck.models.vision import Vision

NAMES = LayerNames(
    queries="attention.q_proj",
    keys="attention.k_proj",
    values="attention.v_proj",
    output="attention.projection_layer",
    norms=("layernorm_before", "layernorm_after"),
)


def read(config: ConfigReader, model: TowerContext, *, biased: bool = False) -> Vision:
    """Read the tower of ``model_type: internvl``. ``biased``: the class's default for biases of q, k and v."""
    outer, outputs = model.outer, model.language.hidden_size
    width = config.integer("hidden_size", default=1024)
    heads = config.integer("num_attention_heads", default=16)
    require_divisible_heads(config, width, heads)
    inner = config.integer("intermediate_size", default=4096)
    depth = config.integer("num_hidden_layers", default=24, maximum=MAX_LAYERS)
    pixel_channels = config.integer("num_channels", default=3)
    image_size, patch = square_side(config, "image_size", 448), square_side(config, "patch_size", 14)
    for key in ("hidden_dropout_prob", "attention_dropout", "projection_dropout"):
        if config.dropout(key):
            config.fail(key, f"{key} in a vision tower has no memory model", "it is 0 in released files")
    for key in ("use_qk_norm", "use_mask_token"):
        if config.flag(key):
            config.fail(key, f"{key}: true has no memory model")
    if not config.flag("use_absolute_position_embeddings", default=True):
        config.fail("use_absolute_position_embeddings", "towers without position embeddings have no memory model")
    norm = {"layer_norm": "layernorm", "rms_norm": "rmsnorm"}.get(config.text("norm_type", default="layer_norm"))
    if norm is None:
        config.fail("norm_type", "norm_type is layer_norm or rms_norm")
    config.ignore("layer_scale_init_value", "layer_norm_eps", "initializer_range", "chunk_size_feed_forward")
    scales = tuple(ParameterTensor(name, (width,), "mlp") for name in ("lambda_1", "lambda_2"))
    mlp = tower_mlp(width, inner, config.activation(default="gelu"), NAMES.mlp)
    bias = config.flag("attention_bias", default=biased)
    block = tower_layer(width, heads, mlp, "separate", NAMES, bias=bias, norm=norm, extra=scales, softmax_fp32=False)
    ratio = outer.number("downsample_ratio", default=0.5)
    factor = int(1 / ratio) ** 2
    layer = outer.raw("vision_feature_layer")
    if layer not in (None, -1) or outer.text("vision_feature_select_strategy", default="default") != "default":
        outer.fail("vision_feature_layer", "only the last layer's patches have a memory model")
    outer.ignore("image_seq_length")
    patches = (image_size // patch) ** 2
    return Vision(
        kind="internvl:internvl",
        hidden=width,
        blocks=((block._replace(variables=LayerVariables(norm=False, output=True, mlp_input=False)), depth),),
        channels=pixel_channels * patch * patch,
        merge=factor,
        outputs=outputs,
        stem=(
            ParameterTensor("embeddings.cls_token", (1, 1, width), "vision"),
            ParameterTensor("embeddings.position_embeddings", (1, patches + 1, width), "position"),
            ParameterTensor(
                "embeddings.patch_embeddings.projection.weight", (width, pixel_channels, patch, patch), "vision"
            ),
            ParameterTensor("embeddings.patch_embeddings.projection.bias", (width,), "vision"),
        ),
        projector=(
            *norm_pair("layer_norm", width * factor),
            *linear("linear_1", outputs, width * factor, "projector", "none", bias=True),
            *linear("linear_2", outputs, outputs, "projector", "none", bias=True),
        ),
        hooked=True,
        closing=() if config.flag("use_mean_pooling", default=True) else norm_pair("layernorm", width),
        tile=patches + 1,
        tile_tokens=patches // factor,
        classes=1,
        patch=patch,
        processor="processors:process_internvl",
        separators=0,
        heads=heads,
        activation=outer.activation("projector_hidden_act", default="gelu"),
        path="vision_tower",
        layers="encoder.layer",
        projector_path="multi_modal_projector",
    )


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings``: patches, class token and positions: [rows, hidden].

    ``require_grad``: make the output of ``patch_embeddings`` require a gradient, as ``enable_input_require_grads``
    does.
    """
    token, table, weight, bias = vision.stem
    patches = ctx.tokens - ctx.setting.images * vision.classes
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
    x = layer_norm(ctx, pixel_shuffle(ctx, vision, x), vision.projector)
    return return_image_tokens(ctx, projector_mlp(ctx, vision, x, vision.projector[2:]), joins=False)


FORWARDS = {
    "internvl": TowerForward(stem, project),
}
"""By name, the forward passes of a kind of tower."""
