"""Parakeet's encoder, a conformer: what is resident of it, and of its projector, in a step without sounds.

modeling_parakeet.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.towers.parts import norm_pair, split_width
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import OtherTower

HARMLESS = (
    "model_type", "hidden_act", "initializer_range", "dropout", "dropout_positions", "layerdrop", "scale_input",
    "activation_dropout", "attention_dropout", "max_position_embeddings", "num_key_value_heads", "sampling_rate",
)  # fmt: skip
NORMS = ("norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out")


def read_sounds(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    """The tower of ``audio_config`` and its projector (NemotronH_Omni); none where that is null or absent."""
    if outer.raw("audio_config") is None:
        return ()
    config = outer.section("audio_config")
    width, heads = config.integer("hidden_size", default=1024), config.integer("num_attention_heads", default=8)
    split_width(config, width, heads)
    inner = config.integer("intermediate_size", default=4096)
    depth = config.integer("num_hidden_layers", default=24, maximum=MAX_LAYERS)
    bias, convolved = config.flag("attention_bias"), config.flag("convolution_bias", default=True)
    kernel = config.integer("conv_kernel_size", default=9)
    between = config.integer("projection_hidden_size", default=4096)
    biased = config.flag("projection_bias")
    stem = _subsampling(config, width)
    config.ignore(*HARMLESS)
    found: tuple[ParameterTensor, ...] = ()
    for half in ("feed_forward1", "feed_forward2"):
        found += linear(f"{half}.linear1", inner, width, "audio", "none", bias=bias)
        found += linear(f"{half}.linear2", width, inner, "audio", "none", bias=bias)
    for letter in "qkvo":
        found += linear(f"self_attn.{letter}_proj", width, width, "audio", "none", bias=bias)
    found += linear("self_attn.relative_k_proj", width, width, "audio", "none")
    found += tuple(vector(f"self_attn.bias_{letter}", width, "audio") for letter in "uv")
    for name, shape in (
        ("pointwise_conv1", (2 * width, width, 1)),
        ("depthwise_conv", (width, 1, kernel)),
        ("pointwise_conv2", (width, width, 1)),
    ):
        found += (ParameterTensor(f"conv.{name}.weight", shape, "audio"),)
        found += (vector(f"conv.{name}.bias", shape[0], "audio"),) if convolved else ()
    found += norm_pair("conv.norm", width)
    for name in NORMS:
        found += norm_pair(name, width)
    block = Block(mixer=None, mlp=None, input_norm=None, mlp_norm=None, extra_tensors=found)
    projector = (
        vector("embed_audio.layer_norm.weight", width, "norm"),
        *linear("embed_audio.linear_1", between, width, "projector", "none", bias=biased),
        *linear("embed_audio.linear_2", outputs, between, "projector", "none", bias=biased),
    )
    tower = OtherTower(part="audio", blocks=((block, depth),), tensors=stem, table=width // 2)
    return (tower, OtherTower(part="projector", blocks=(), tensors=projector))


def _subsampling(config: ConfigReader, width: int) -> tuple[ParameterTensor, ...]:
    """A convolution over time and frequency, pairs of one by channel and one of 1 x 1, and a matrix."""
    channels = config.integer("subsampling_conv_channels", default=256)
    kernel = config.integer("subsampling_conv_kernel_size", default=3)
    stride = config.integer("subsampling_conv_stride", default=2)
    factor, bins = config.integer("subsampling_factor", default=8), config.integer("num_mel_bins", default=80)
    layers = factor.bit_length() - 1
    path, found = "subsampling.layers", list[ParameterTensor]()

    def convolution(index: int, colours: int, side: int) -> None:
        found.append(ParameterTensor(f"{path}.{index}.weight", (channels, colours, side, side), "audio"))
        found.append(vector(f"{path}.{index}.bias", channels, "audio"))

    convolution(0, 1, kernel)
    for layer in range(layers - 1):
        convolution(2 + 3 * layer, 1, kernel)
        convolution(3 + 3 * layer, channels, 1)
    rows = channels * (bins // stride**layers)
    return (*found, *linear("subsampling.linear", width, rows, "audio", "none", bias=True))
