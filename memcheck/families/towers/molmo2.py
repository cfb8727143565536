"""Molmo 2 on pictures: SigLIP's layers, rows of two pooled by attention, a gated network (modeling_molmo2.py)."""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import SIGLIP, LayerNames, split_width, square, tower_layer, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision

NAMES = LayerNames(output="self_attn.o_proj", norms=SIGLIP.norms, mlp=SIGLIP.mlp)
IDLE = (
    "attn_implementation", "float32_attention", "residual_dropout", "image_feature_dropout", "pooling_attention_mask",
)  # fmt: skip
"""Keys of released files that transformers' class does not read."""
POOLED = 4
"""Patches that become one image token."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: molmo2``. Clips have no memory model."""
    outer, outputs = around.outer, around.language.hidden_size
    outer.ignore("initializer_range", "image_patch_id", "image_start_token_id", "low_res_image_start_token_id")
    outer.ignore("image_high_res_id", "use_frame_special_tokens", "use_cache")
    outer.ignore("image_end_token_id", "frame_start_token_id", "frame_end_token_id", "image_low_res_id", "image_col_id")
    width, heads = _attention(config)
    inner = config.integer("intermediate_size", default=4304)
    depth = config.integer("num_hidden_layers", default=25, maximum=MAX_LAYERS)
    side = square(config, "image_default_input_size" if config.has("image_default_input_size") else "image_size", 378)
    patch = square(config, "image_patch_size" if config.has("image_patch_size") else "patch_size", 14)
    rows, colours = (side // patch) ** 2, config.integer("num_channels", default=3)
    config.ignore("image_size", "patch_size", "image_default_input_size", "image_patch_size", *IDLE)
    if config.integer("num_position_embeddings", "image_num_pos", default=rows) != rows:
        config.fail("num_position_embeddings", f"a square of {side} pixels has {rows} patches")
    config.ignore("model_type", "layer_norm_eps", "initializer_range")
    mlp = tower_mlp(width, inner, config.activation(default="gelu_pytorch_tanh"), NAMES.mlp)
    adapter = outer.section("adapter_config")
    released = "vit_layers" if adapter.has("vit_layers") else "vision_feature_layer"
    stated = adapter.integers(released) or (24, 18)
    adapter.ignore("vit_layers", "vision_feature_layer", *IDLE)
    states = sorted(i + 1 if i >= 0 else depth + 1 + i for i in stated)
    if not all(0 < i <= depth for i in states) or len(set(states)) != len(states):
        adapter.fail("vision_feature_layer", f"the tower of {depth} layers has no rows of layers {list(stated)}")
    pooled, over = _attention(adapter)
    if pooled != width:
        adapter.fail("hidden_size", f"{pooled} is not the tower's width {width}")
    made = adapter.integer("intermediate_size", default=18944)
    if adapter.integer("text_hidden_size", default=3584) != outputs:
        adapter.fail("text_hidden_size", f"it is not the language model's width {outputs}")
    if adapter.flag("mlp_bias"):
        adapter.fail("mlp_bias", "mlp_bias: true has no memory model", "it is false in released files")
    adapter.ignore("model_type", "initializer_range")
    block, wide = tower_layer(width, heads, mlp, "separate", NAMES), width * len(states)
    projector: tuple[ParameterTensor, ...] = ()
    for name in ("q_proj", "k_proj", "v_proj"):
        projector += linear(f"image_pooling_2d.{name}", width, wide, "projector", "none", bias=True)
    projector += linear("image_pooling_2d.o_proj", width, width, "projector", "none", bias=True)
    for name in ("gate_proj", "up_proj"):
        projector += linear(f"image_projector.{name}", made, width, "projector", "none")
    last = max(states)
    return Vision(
        kind="molmo2",
        hidden=width,
        blocks=((block, last),),
        idle=((block, depth - last),) if last < depth else (),
        channels=colours * patch * patch,
        merge=POOLED,
        outputs=outputs,
        stem=(
            ParameterTensor("positional_embedding", (rows, width), "position"),
            *linear("patch_embedding", width, colours * patch * patch, "vision", "none", bias=True),
        ),
        projector=projector + linear("image_projector.down_proj", outputs, made, "projector", "none"),
        hooked=False,
        gathered=tuple(states[:-1]),
        perceiver=Perceiver(
            latents=1,
            heads=over,
            kv_heads=over,
            head_dim=width // over,
            activation=adapter.activation(default="silu"),
        ),
        adds=True,
        tile=rows,
        tile_tokens=(-(-(side // patch) // 2)) ** 2,
        patch=patch,
        processor="crops:see",
        separators=4,
        heads=heads,
        path="vision_tower",
        projector_path="multi_modal_projector",
    )


def _attention(config: ConfigReader) -> tuple[int, int]:
    """Width and heads, all of which have keys and values."""
    width, heads = config.integer("hidden_size", default=1152), config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    if config.integer("num_key_value_heads", default=heads) != heads:
        config.fail("num_key_value_heads", "fewer heads of keys and values have no memory model here")
    if config.integer("head_dim", default=width // heads) * heads != width:
        config.fail("head_dim", f"{heads} heads do not make the width {width}")
    if not config.flag("attention_bias", default=True):
        config.fail("attention_bias", "attention_bias: false has no memory model here", "it is true in released files")
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "a dropout in a vision tower has no memory model", "it is 0 in released files")
    return width, heads
