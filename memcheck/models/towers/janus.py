"""Janus: SigLIP's layers with names of their own, an aligner, and the coder of pictures that it draws, which is idle.

modeling_janus.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.towers.parts import LayerNames, norm_pair, split_width, square, tower_layer, tower_mlp
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import OtherTower, Vision

NAMES = LayerNames(output="self_attn.projection_layer")


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: janus`` on pictures that it looks at."""
    outer, hidden = around.outer, around.language.hidden_size
    width = config.integer("hidden_size", default=1024)
    heads = config.integer("num_attention_heads", default=16)
    split_width(config, width, heads)
    depth = config.integer("num_hidden_layers", default=24, maximum=MAX_LAYERS)
    colours = config.integer("num_channels", default=3)
    side, patch = square(config, "image_size", 384), square(config, "patch_size", 16)
    outputs = config.integer("projection_dim", default=2048)
    if outputs != hidden:
        config.fail("projection_dim", f"projection_dim = {outputs} is not the language model's width {hidden}")
    for key in ("hidden_dropout_rate", "attention_dropout", "projection_dropout"):
        if config.dropout(key):
            config.fail(key, f"{key} in a vision tower has no memory model", "it is 0 in released files")
    if config.flag("use_qk_norm"):
        config.fail("use_qk_norm", "use_qk_norm: true has no memory model")
    bias, activation = config.flag("attention_bias", default=True), config.activation(default="gelu")
    mlp = tower_mlp(width, int(width * config.number("mlp_ratio", default=4.0)), activation, NAMES.mlp)
    aligned = config.integer("depth", default=2, maximum=MAX_LAYERS)
    config.ignore("model_type", "layer_norm_eps", "initializer_range", "num_image_tokens", "chunk_size_feed_forward")
    embedding, patches = "embeddings.patch_embedding", (side // patch) ** 2
    return Vision(
        kind="janus",
        hidden=width,
        blocks=((tower_layer(width, heads, mlp, "separate", NAMES, bias=bias), depth),),
        channels=colours * patch * patch,
        merge=1,
        outputs=outputs,
        stem=(
            ParameterTensor(embedding + ".weight", (width, colours, patch, patch), "vision"),
            ParameterTensor(embedding + ".bias", (width,), "vision"),
            ParameterTensor("embeddings.position_embedding.weight", (patches, width), "position"),
        ),
        projector=_aligner("", outputs, width, aligned),
        hooked=True,
        closing=norm_pair("post_layernorm", width),
        tile=patches,
        tile_tokens=patches,
        patch=patch,
        processor="square:see",
        separators=2,
        heads=heads,
        activation=activation,
        path="vision_model",
        projector_path="aligner",
        others=(OtherTower(part="vision", blocks=(), tensors=_drawing(outer)),),
    )


def _aligner(prefix: str, outputs: int, inputs: int, depth: int) -> tuple[ParameterTensor, ...]:
    found = linear(f"{prefix}fc1", outputs, inputs, "projector", "none", bias=True)
    for i in range(depth - 1):
        found += linear(f"{prefix}hidden_layers.{i}", outputs, outputs, "projector", "none", bias=True)
    return found


def _drawing(outer: ConfigReader) -> tuple[ParameterTensor, ...]:
    """``vqmodel``, ``generation_embeddings``, ``generation_aligner`` and ``generation_head``."""
    c = outer.section("vq_config")
    width, codes = c.integer("embed_dim", default=8), c.integer("num_embeddings", default=16384)
    made, made_of = c.integer("projection_dim", default=2048), c.integer("image_token_embed_dim", default=2048)
    channels, base = c.integer("latent_channels", default=256), c.integer("base_channels", default=128)
    colours, drawn = c.integer("in_channels", default=3), c.integer("out_channels", default=3)
    depth = c.integer("num_hidden_layers", default=2, maximum=MAX_LAYERS)
    stated = c.integers("channel_multiplier") or (1, 1, 2, 2, 4)
    times = c.integer("num_res_blocks", default=2, maximum=MAX_LAYERS)
    twice = 2 if c.flag("double_latent") else 1
    if min(stated) < 1 or len(stated) > MAX_LAYERS:
        c.fail("channel_multiplier", f"{list(stated)} are no factors of the channels")
    c.ignore("model_type", "dropout", "hidden_act", "initializer_range", "num_patches")
    widths = [base * n for n in stated]
    found = _conv("encoder.conv_in", base, colours, 3)
    before = base
    for i, w in enumerate(widths):
        for j in range(times):
            found += _residual(f"encoder.down.{i}.block.{j}", w, before)
            before = w
            found += _attention(f"encoder.down.{i}.attn.{j}", w) if i == len(widths) - 1 else ()
        found += _conv(f"encoder.down.{i}.downsample.conv", w, w, 3) if i < len(widths) - 1 else ()
    found += _middle("encoder.mid", before) + norm_pair("encoder.norm_out", before)
    found += _conv("encoder.conv_out", twice * channels, before, 3)
    found += (ParameterTensor("quantize.embedding.weight", (codes, width), "vision"),)
    found += _conv("quant_conv", width, twice * channels, 1) + _conv("post_quant_conv", channels, width, 1)
    before = widths[-1]
    found += _conv("decoder.conv_in", before, channels, 3) + _middle("decoder.mid", before)
    for i, w in enumerate(reversed(widths)):
        for j in range(times + 1):
            found += _residual(f"decoder.up.{i}.block.{j}", w, before)
            before = w
            found += _attention(f"decoder.up.{i}.attn.{j}", w) if i == 0 else ()
        found += _conv(f"decoder.up.{i}.upsample.conv", w, w, 3) if i < len(widths) - 1 else ()
    found += norm_pair("decoder.norm_out", before) + _conv("decoder.conv_out", drawn, before, 3)
    found += (ParameterTensor("generation_embeddings.weight", (codes, width), "vision"),)
    found += _aligner("generation_aligner.", made, width, depth)
    found += linear("generation_head.proj_out", made, made_of, "vision", "none", bias=True)
    return found + linear("generation_head.vision_head", codes, made, "vision", "none", bias=True)


def _conv(name: str, outputs: int, inputs: int, kernel: int) -> tuple[ParameterTensor, ...]:
    weight = ParameterTensor(name + ".weight", (outputs, inputs, kernel, kernel), "vision")
    return weight, vector(name + ".bias", outputs, "vision")


def _residual(name: str, outputs: int, inputs: int) -> tuple[ParameterTensor, ...]:
    found = norm_pair(f"{name}.norm1", inputs) + _conv(f"{name}.conv1", outputs, inputs, 3)
    found += norm_pair(f"{name}.norm2", outputs) + _conv(f"{name}.conv2", outputs, outputs, 3)
    return found + (_conv(f"{name}.nin_shortcut", outputs, inputs, 1) if inputs != outputs else ())


def _attention(name: str, width: int) -> tuple[ParameterTensor, ...]:
    found: tuple[ParameterTensor, ...] = norm_pair(f"{name}.norm", width)
    for each in ("q", "k", "v", "proj_out"):
        found += _conv(f"{name}.{each}", width, width, 1)
    return found


def _middle(name: str, width: int) -> tuple[ParameterTensor, ...]:
    found = _residual(f"{name}.block_1", width, width) + _attention(f"{name}.attn_1", width)
    return found + _residual(f"{name}.block_2", width, width)
