"""GOT-OCR 2 and PP-Chart2Table: SAM's encoder over one square picture, which convolutions make few image tokens of.

modeling_got_ocr2.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import norm_pair, split_width, square, tower_mlp
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.stack import stack
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, Norm, ParameterTensor
from memcheck.models.vision import TowerAttention, Vision
from memcheck.record import Record

GLOBAL = (2, 5, 8, 11)
"""Layers whose patches see all others, where the configuration is silent."""
STRIDES = 16
"""Patches that become one image token: two convolutions take every second row and column."""


class SamSizes(Record):
    """What the layers of SAM's encoder have in common."""

    width: int
    heads: int
    inner: int
    side: int
    """Patches of a picture's side."""
    bias: bool
    relative: bool
    """Each layer has tables of distances."""
    activation: str


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: got_ocr2``."""
    outer, outputs = around.outer, around.language.hidden_size
    outer.ignore("image_seq_length")
    size = _sizes(config)
    colours, patch = config.integer("num_channels", default=3), square(config, "patch_size", 16)
    channels = config.integer("output_channels", default=256)
    width, tile = size.width, size.side * size.side
    config.ignore("layer_norm_eps", "initializer_range", "model_type")
    stem = [
        ParameterTensor("patch_embed.projection.weight", (width, colours, patch, patch), "vision"),
        ParameterTensor("patch_embed.projection.bias", (width,), "vision"),
    ]
    if not config.flag("use_abs_pos", default=True):
        config.fail("use_abs_pos", "a tower without a table of positions has no memory model")
    stem.append(ParameterTensor("pos_embed", (1, size.side, size.side, width), "position"))
    if size.side % 4:
        config.fail("image_size", f"{size.side} patches of a side are no multiple of 4, as convolutions want them")
    return Vision(
        kind="got_ocr2",
        hidden=width,
        blocks=_layers(config, size),
        channels=colours * patch * patch,
        merge=STRIDES,
        outputs=outputs,
        stem=tuple(stem),
        closing=(
            ParameterTensor("neck.conv1.weight", (channels, width, 1, 1), "vision"),
            *norm_pair("neck.layer_norm1", channels),
            ParameterTensor("neck.conv2.weight", (channels, channels, 3, 3), "vision"),
            *norm_pair("neck.layer_norm2", channels),
        ),
        projector=(
            ParameterTensor("conv_upsampler1.weight", (2 * channels, channels, 3, 3), "projector"),
            ParameterTensor("conv_upsampler2.weight", (outputs, 2 * channels, 3, 3), "projector"),
            *linear("multimodal_projector", outputs, outputs, "projector", "none", bias=True),
        ),
        hooked=True,
        tile=tile,
        tile_tokens=tile // STRIDES,
        patch=patch,
        processor="square:see",
        separators=2,
        heads=size.heads,
        path="vision_tower",
        projector_path="multi_modal_projector",
    )


def _sizes(config: ConfigReader) -> SamSizes:
    width = config.integer("hidden_size", default=768)
    heads = config.integer("num_attention_heads", default=12)
    split_width(config, width, heads)
    if config.dropout("attention_dropout"):
        config.fail("attention_dropout", "attention_dropout in a vision tower has no memory model", "remove it")
    return SamSizes(
        width=width,
        heads=heads,
        inner=config.integer("mlp_dim", default=3072),
        side=square(config, "image_size", 1024) // square(config, "patch_size", 16),
        bias=config.flag("qkv_bias", default=True),
        relative=config.flag("use_rel_pos", default=True),
        activation=config.activation(default="gelu"),
    )


def _layers(config: ConfigReader, size: SamSizes) -> tuple[tuple[Block, int], ...]:
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    window = config.integer("window_size", default=14, minimum=0)
    stated = config.integers("global_attn_indexes")
    whole = GLOBAL if stated is None else stated
    width, mlp = size.width, tower_mlp(size.width, size.inner, size.activation, ("mlp.lin1", "mlp.lin2"))
    norms = tuple(Norm("layernorm", width, bias=True, name=name) for name in ("layer_norm1", "layer_norm2"))

    def make(side: int) -> Block:
        mixer = _attention(size, side)
        return Block(mixer=mixer, mlp=mlp, input_norm=norms[0], mlp_norm=norms[1])

    return stack(tuple(0 if i in whole else window for i in range(depth)), make)


def _attention(size: SamSizes, window: int) -> TowerAttention:
    """Attention in windows of ``window`` patches a side; 0: over all of the picture."""
    d, side = size.width // size.heads, window or size.side
    tensors = (
        *linear("attn.qkv", 3 * size.width, size.width, "attention", "none", bias=size.bias),
        *linear("attn.proj", size.width, size.width, "attention", "none", bias=True),
    )
    if size.relative:
        tables = ("attn.rel_pos_h", "attn.rel_pos_w")
        tensors += tuple(ParameterTensor(name, (2 * side - 1, d), "position") for name in tables)
    return TowerAttention(
        heads=size.heads, head_dim=d, kind="sam", tensors=tensors, bias=size.bias, window=window * window
    )
