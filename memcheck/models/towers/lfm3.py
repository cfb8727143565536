"""LFM3-VL: gated convolutions over each picture's grid, grouped attention in between (modeling_lfm3_vl.py)."""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.stack import stack
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import HARMLESS, norm_pair, split_width, square, tower_mlp
from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

WORDS = ("conv", "full_attention")


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: lfm3_vl``: patches of two frames by one matrix, a norm, and a projector of two matrices."""
    outer, outputs = around.outer, around.language.hidden_size
    width = config.integer("hidden_size", default=1024)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    grouped = config.integer("num_key_value_heads", default=8)
    if heads % grouped:
        config.fail("num_key_value_heads", f"{heads} heads cannot share {grouped} key-value heads")
    inner = config.integer("intermediate_size", default=2560)
    colours, patch = config.integer("in_channels", default=3), square(config, "patch_size", 16)
    frames, side = square(config, "temporal_patch_size", 2), config.integer("spatial_merge_size", default=2)
    kernel = config.integer("conv_kernel_size", default=3)
    config.ignore("norm_eps", *HARMLESS)
    mlp = tower_mlp(width, inner, "silu", tuple(f"feed_forward.{name}" for name in ("w1", "w3", "w2")), bias=False)
    mixers = dict(zip(WORDS, (_convolution(width, heads, kernel), _attention(width, heads, grouped)), strict=True))
    norms = tuple(Norm("rmsnorm", width, name=name) for name in ("operator_norm", "ffn_norm"))

    def make(kind: str) -> Block:
        return Block(mixer=mixers[kind], mlp=mlp, input_norm=norms[0], mlp_norm=norms[1])

    merge, channels = side * side, colours * frames * patch * patch
    wide, bias = width * merge, outer.flag("projector_bias", default=True)
    projected = outer.integer("projector_hidden_size", default=4096)
    return Vision(
        kind="lfm3",
        hidden=width,
        blocks=stack(_types(config), make),
        channels=channels,
        merge=merge,
        outputs=outputs,
        stem=(
            *linear("patch_embed", width, channels, "vision", "none"),
            ParameterTensor("embedding_norm.weight", (width,), "norm"),
        ),
        projector=(
            *norm_pair("layer_norm", width),
            *linear("linear_1", projected, wide, "projector", "none", bias=bias),
            *linear("linear_2", outputs, projected, "projector", "none", bias=bias),
        ),
        hooked=True,
        cast=False,
        patch=patch,
        processor="qwen:see_default",
        separators=2,
        heads=heads,
        activation=outer.activation(default="gelu", key="projector_hidden_act"),
        path="vision_tower",
        projector_path="multi_modal_projector",
    )


def _types(config: ConfigReader) -> tuple[str, ...]:
    depth = config.integer("num_hidden_layers", default=14, maximum=MAX_LAYERS)
    found = config.texts("layer_types") or tuple(WORDS[i > 1 and i % 2 == 0] for i in range(depth))
    if len(found) < depth:
        config.fail("layer_types", f"layer_types names {len(found)} layers, the tower has {depth}")
    return tuple(word if word == WORDS[0] else WORDS[1] for word in found[:depth])  # its class asks for the first alone


def _convolution(width: int, heads: int, kernel: int) -> TowerAttention:
    """``conv``: three parts of one matrix; the first and the last are multiplied, convolved, and gated."""
    tensors = (
        *linear("conv.in_proj", 3 * width, width, "mixer", "none"),
        ParameterTensor("conv.spatial_conv.weight", (width, 1, kernel, kernel), "mixer"),
        *linear("conv.out_proj", width, width, "mixer", "none"),
    )
    return TowerAttention(heads=heads, head_dim=width // heads, kind="grid-convolution", tensors=tensors, bias=False)


def _attention(width: int, heads: int, grouped: int) -> TowerAttention:
    d = width // heads
    tensors: tuple[ParameterTensor, ...] = ()
    for name, out in (("q_proj", width), ("k_proj", grouped * d), ("v_proj", grouped * d)):
        tensors += linear(f"self_attn.{name}", out, width, "attention", "none")
    norms = tuple(ParameterTensor(f"self_attn.{name}.weight", (d,), "norm") for name in ("q_norm", "k_norm"))
    return TowerAttention(
        heads=heads,
        head_dim=d,
        kind="grouped-separate",
        kv_heads=grouped,
        tensors=(*tensors, *linear("self_attn.out_proj", width, width, "attention", "none"), *norms),
        bias=False,
        query_norm=Norm("rmsnorm", d, name="self_attn.q_norm"),
        key_norm=Norm("rmsnorm", d, name="self_attn.k_norm"),
    )
