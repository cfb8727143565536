"""GLM-4.1V, GLM-4.5V, GLM-4.6V and GLM-OCR: rows of all pictures, a convolution that merges four, a gated merger.

modeling_glm4v.py, modeling_glm4v_moe.py, modeling_glm_ocr.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import norm_pair, square
from memcheck.families.towers.qwen import channels, heads_of, outputs_of, packed_block, packed_mlp, patch_embedding
from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

TOKENS = ("image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id")
GATED = ("gate_proj", "up_proj", "down_proj")


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``glm4v``, ``glm4v_moe`` and ``glm46v``: positions interpolated from a table. Layers are as wide inside as an
    image token; ``intermediate_size`` is the merger's.
    """
    outputs = outputs_of(config, around.language.hidden_size)
    inner = config.integer("intermediate_size", default=13696)
    bias = config.flag("attention_bias")
    tower = _tower(config, around, "glm4v", (outputs, inner), (1536, 12), bias=bias)
    side, patch = square(config, "image_size", 336), tower.patch
    table = ParameterTensor("embeddings.position_embedding.weight", ((side // patch) ** 2, tower.hidden), "position")
    norm = ParameterTensor("post_conv_layernorm.weight", (tower.hidden,), "norm")
    return tower._replace(stem=(*tower.stem, norm, table))


def read_ocr(config: ConfigReader, around: AroundTower) -> Vision:
    """``glm_ocr``: queries and keys are normed, no positions but rotations; the merger is ``in_channels`` as wide."""
    outputs = outputs_of(config, around.language.hidden_size)
    inner = config.integer("intermediate_size", default=4096)
    merger = outputs * config.integer("in_channels", default=3)
    config.ignore("image_size")
    bias = config.flag("attention_bias", default=True)
    return _tower(config, around, "glm_ocr", (inner, merger), (1024, 16), bias=bias)


def _tower(
    config: ConfigReader,
    around: AroundTower,
    kind: str,
    inner: tuple[int, int],
    default: tuple[int, int],
    *,
    bias: bool,
) -> Vision:
    """``inner``: widths inside of layers and merger; ``default``: the class's width and heads."""
    around.outer.ignore(*TOKENS)
    outputs, ocr = around.language.hidden_size, kind == "glm_ocr"
    width = config.integer("hidden_size", default=default[0])
    heads = heads_of(config, width, default[1])
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "attention_dropout in a vision tower has no memory model", "remove it")
    config.ignore("rms_norm_eps", "initializer_range")
    activation = config.activation(default="silu")
    norms = tuple(Norm("rmsnorm", width // heads, name=f"attn.{name}") for name in ("q_norm", "k_norm")) if ocr else ()
    tensors = linear("attn.qkv", 3 * width, width, "attention", "column", bias=bias)
    tensors += linear("attn.proj", width, width, "attention", "row", bias=ocr and bias)
    for norm in norms:
        tensors += norm_tensors(norm)
    attention = TowerAttention(
        heads=heads,
        head_dim=width // heads,
        kind="qwen",
        tensors=tensors,
        bias=bias,
        query_norm=norms[0] if norms else None,
        key_norm=norms[1] if norms else None,
    )
    mlp = packed_mlp(width, inner[0], activation, GATED, bias=ocr and bias)
    # in models with stacked experts peft maps the names of these matrices to the experts, and to nothing else
    named = around.outer.model_type != "glm4v_moe"
    gated: tuple[ParameterTensor, ...] = ()
    for name, out, inp in (
        ("gate_proj", inner[1], outputs),
        ("up_proj", inner[1], outputs),
        ("down_proj", outputs, inner[1]),
    ):
        gated += tuple(t._replace(linear=named) for t in linear(f"merger.{name}", out, inp, "projector", "none"))
    depth = config.integer("depth", default=24, maximum=MAX_LAYERS)
    merge = config.integer("spatial_merge_size", default=2)
    block = packed_block(width, heads, mlp._replace(adaptable=named), "rmsnorm", attention=attention)
    return Vision(
        kind=kind,
        hidden=width,
        blocks=((block, depth),),
        channels=channels(config, 14),
        merge=merge * merge,
        outputs=outputs,
        stem=patch_embedding(config, width, 14, bias=True),
        closing=(ParameterTensor("post_layernorm.weight", (width,), "norm"),),
        projector=(
            ParameterTensor("downsample.weight", (outputs, width, merge, merge), "projector"),
            ParameterTensor("downsample.bias", (outputs,), "projector"),
            *linear("merger.proj", outputs, outputs, "projector", "none"),
            *norm_pair("merger.post_projection_norm", outputs),
            *gated,
        ),
        hooked=False,
        narrow=ocr,  # the norm after the others' patches multiplies by fp32 weights under autocast
        patch=square(config, "patch_size", 14),
        processor="qwen:see_glm",
        separators=2,
        gives_out=False,
        heads=heads,
        activation=activation,
    )
