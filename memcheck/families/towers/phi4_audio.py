"""The conformer of Phi-4-multimodal and what projects its rows, which are idle in steps without sounds.

modeling_phi4_multimodal.py of transformers 5.23, Phi4MultimodalAudioEmbedding.
"""

from __future__ import annotations

from memcheck.families.towers.parts import norm_pair
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import OtherTower


def read(config: ConfigReader, outputs: int) -> OtherTower:
    """Every tensor of ``embed_tokens_extend.audio_embed``. Its two norms' buffers are numbers of each frequency."""
    width = config.integer("hidden_size", default=1024)
    inner = config.integer("intermediate_size", default=1536)
    layers = config.integer("num_blocks", default=24, maximum=MAX_LAYERS)
    heads = config.integer("num_attention_heads", default=16)
    channels, bins = config.integer("nemo_conv_channels", default=1024), config.integer("input_size", default=80)
    reduction = config.integer("time_reduction", default=8)
    distance = config.integer("bias_max_distance", default=1000)
    buckets = distance if config.flag("bias_symmetric") else 2 * distance
    stacked = config.integer("downsample_rate", default=1) * width
    config.ignore(
        "model_type", "activation", "chunk_size", "left_chunk", "dropout_rate", "conv_activation", "conv_glu_type",
        "nemo_activation", "initializer_range", "audio_token_id", "feature_layer", "nemo_final_size",
    )  # fmt: skip
    halvings = reduction.bit_length() - 1
    for _ in range(halvings):
        bins = (bins - 1) // 2 + 1
    tensors = _conv("encoder.embed.conv.0", channels, 1, 3, 3)
    for i in range(halvings - 1):
        tensors += _conv(f"encoder.embed.conv.{2 + 3 * i}", channels, 1, 3, 3)  # a group each channel
        tensors += _conv(f"encoder.embed.conv.{3 + 3 * i}", channels, channels, 1, 1)
    tensors += linear("encoder.embed.out", width, channels * bins, "audio", "none", bias=True)
    table = "encoder.relative_attention_bias_layer.bias_values.weight"
    tensors += (ParameterTensor(table, (buckets, heads), "audio"),)
    for kind in ("speech", "vision_speech"):
        tensors += linear(f"up_proj_for_{kind}", outputs, stacked, "audio", "none", bias=True)
        tensors += linear(f"down_proj_for_{kind}", outputs, outputs, "audio", "none", bias=True)
    block = Block(mixer=None, mlp=None, input_norm=None, mlp_norm=None, extra_tensors=_layer(config, width, inner))
    return OtherTower(part="audio", blocks=((block, layers),), tensors=tensors)


def _layer(config: ConfigReader, width: int, inner: int) -> tuple[ParameterTensor, ...]:
    """Two halves of a gated network around attention and convolutions (Phi4MultimodalAudioConformerEncoderLayer)."""
    kernel = config.integer("kernel_size", default=3)
    middle = config.integer("ext_pw_out_channel", default=1024)
    apart = config.integer("depthwise_multiplier", default=1) * width
    out = config.integer("depthwise_separable_out_channel", default=1024)
    found: tuple[ParameterTensor, ...] = ()
    for half in ("feed_forward_in", "feed_forward_out"):
        found += norm_pair(f"{half}.layer_norm", width)
        found += linear(f"{half}.gate_up_proj", 2 * inner, width, "audio", "none", bias=True)
        found += linear(f"{half}.down_proj", width, inner, "audio", "none", bias=True)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        found += linear(f"self_attn.{name}", width, width, "audio", "none", bias=True)
    found += norm_pair("conv.layer_norm", width)
    found += _conv("conv.glu.ext_pw_conv_1d", 2 * middle, width, 1)
    found += tuple(ParameterTensor(f"conv.glu.{name}", (1, middle, 1), "audio") for name in ("b1", "b2"))
    found += _conv("conv.dw_sep_conv_1d.dw_conv", apart, 1, kernel)
    found += _conv("conv.dw_sep_conv_1d.pw_conv", out, apart, 1)
    found += _conv("conv.ext_pw_conv_1d", middle, width, 1)
    return found + norm_pair("layer_norm_att", width) + norm_pair("layer_norm", width)


def _conv(name: str, outputs: int, inputs: int, *kernel: int) -> tuple[ParameterTensor, ...]:
    weight = ParameterTensor(name + ".weight", (outputs, inputs, *kernel), "audio")
    return weight, vector(name + ".bias", outputs, "audio")
