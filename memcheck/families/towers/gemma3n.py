"""MobileNet-V5, Gemma 3n's tower: what is resident of it in a step without pictures.

timm 1.0 models/mobilenetv5.py (``mobilenetv5_300m_enc``: edge residuals, universal inverted bottlenecks, attention with
one head of keys), models/_efficientnet_blocks.py, layers/layer_scale.py.

Gemma 3n: a convolutional tower for pictures and a conformer for sounds, which are idle in steps of text; tables of
its own tokens for both, which every token goes through (modeling_gemma3n.py of transformers 5.23).
"""

from __future__ import annotations

from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import idle_layer
from memcheck.models.decoder import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Buffers, Embedder, IdleTowers, OtherTower
from memcheck.record import Record

ARCHITECTURE = "mobilenetv5_300m_enc"
SIDE = 768
"""Pixels of a picture's side as Gemma 3n's processor leaves it."""


class _Bottleneck(Record):
    """MobileNet's universal inverted residual block (timm ``uir``): depthwise convolution, widening, depthwise
    convolution, narrowing.
    """

    kernels: tuple[int, int]
    """Kernel sizes of the two depthwise convolutions, before and after the widening; 0: the block has none."""
    ratio: int
    """Channels between widening and narrowing, as a multiple of the block's input channels."""
    outputs: int


class _Attention(Record):
    """MobileNet's multi-query attention (timm ``mqa``)."""

    heads: int
    width: int
    """Dimensions of a head."""
    down: bool
    """Keys and values are taken from every second row and column (a convolution of stride 2)."""


EDGE = (256, 512, 512)
"""Channels inside the first stage's blocks, of 128 outputs."""
STAGES: tuple[tuple[_Bottleneck | _Attention, ...], ...] = (
    (
        _Bottleneck((3, 5), 6, 256), _Bottleneck((5, 0), 4, 256), _Bottleneck((3, 0), 4, 256),
        _Bottleneck((5, 0), 4, 256), _Bottleneck((3, 0), 4, 256),
    ),
    (
        _Bottleneck((5, 5), 6, 640), *(7 * (_Bottleneck((5, 0), 4, 640),)), _Bottleneck((0, 0), 1, 640),
        *(14 * (_Attention(12, 64, down=True), _Bottleneck((0, 0), 2, 640))),
    ),
    (_Bottleneck((5, 5), 6, 1280), *(19 * (_Attention(16, 96, down=False), _Bottleneck((0, 0), 2, 1280)))),
)  # fmt: skip
STEM, FIRST, LAST = 64, 128, 2048
"""Channels of the first convolution, of the first stage, and of what the last two stages become together."""


def tensors() -> tuple[ParameterTensor, ...]:
    """List every parameter of Gemma 3n's picture tower, timm's ``mobilenetv5_300m_enc``: stem, four stages, fusion
    (``msfa``).
    """
    tensors = _conv("conv_stem.conv", STEM, 3, 3)
    tensors += (*_vectors(STEM, "conv_stem.conv.bias", "conv_stem.bn.weight"),)
    width = STEM
    for i, inner in enumerate(EDGE):
        name = f"blocks.0.{i}"
        tensors += _conv(f"{name}.conv_exp", inner, width, 3) + _vectors(inner, f"{name}.bn1.weight")
        tensors += _conv(f"{name}.conv_pwl", FIRST, inner, 1) + _vectors(FIRST, f"{name}.bn2.weight")
        width = FIRST
    for stage, blocks in enumerate(STAGES, 1):
        for i, block in enumerate(blocks):
            name = f"blocks.{stage}.{i}"
            if isinstance(block, _Attention):
                tensors += _attention(name, width, block)
            else:
                tensors += _bottleneck(name, width, block)
                width = block.outputs
    joined = STAGES[-2][0], STAGES[-1][0]
    inputs = sum(block.outputs for block in joined if isinstance(block, _Bottleneck))
    tensors += _conv("msfa.ffn.pw_exp.conv", 2 * inputs, inputs, 1) + _vectors(2 * inputs, "msfa.ffn.pw_exp.bn.weight")
    tensors += _conv("msfa.ffn.pw_proj.conv", LAST, 2 * inputs, 1)
    return tensors + _vectors(LAST, "msfa.ffn.pw_proj.bn.weight", "msfa.norm.weight")


def _conv(name: str, outputs: int, inputs: int, kernel: int) -> tuple[ParameterTensor, ...]:
    """Weight of a convolution without bias: [outputs, inputs, kernel, kernel]."""
    return (ParameterTensor(name + ".weight", (outputs, inputs, kernel, kernel), "vision"),)


def _vectors(size: int, *names: str) -> tuple[ParameterTensor, ...]:
    """One-dimensional parameters of norms and layer scales, each of ``size`` elements."""
    return tuple(ParameterTensor(name, (size,), "norm") for name in names)


def _bottleneck(name: str, inputs: int, bottleneck: _Bottleneck) -> tuple[ParameterTensor, ...]:
    """List the tensors of a universal inverted bottleneck: optional depthwise kernel, expansion, optional kernel,
    projection.
    """
    tensors: tuple[ParameterTensor, ...] = ()
    expanded, (start_kernel, middle_kernel) = inputs * bottleneck.ratio, bottleneck.kernels
    if start_kernel:
        tensors += _conv(f"{name}.dw_start.conv", inputs, 1, start_kernel) + _vectors(
            inputs, f"{name}.dw_start.bn.weight"
        )
    tensors += _conv(f"{name}.pw_exp.conv", expanded, inputs, 1) + _vectors(expanded, f"{name}.pw_exp.bn.weight")
    if middle_kernel:
        tensors += _conv(f"{name}.dw_mid.conv", expanded, 1, middle_kernel) + _vectors(
            expanded, f"{name}.dw_mid.bn.weight"
        )
    tensors += _conv(f"{name}.pw_proj.conv", bottleneck.outputs, expanded, 1)
    return tensors + _vectors(bottleneck.outputs, f"{name}.pw_proj.bn.weight", f"{name}.layer_scale.gamma")


def _attention(name: str, width: int, attention: _Attention) -> tuple[ParameterTensor, ...]:
    """List the tensors of multi-query attention over [width] channels: many query heads, one key and one value head."""
    tensors = _vectors(width, f"{name}.norm.weight", f"{name}.layer_scale.gamma")
    tensors += _conv(f"{name}.attn.query.proj", attention.heads * attention.width, width, 1)
    for projection in ("key", "value"):
        if attention.down:
            tensors += _conv(f"{name}.attn.{projection}.down_conv", width, 1, 3)
            tensors += _vectors(width, f"{name}.attn.{projection}.norm.weight")
        tensors += _conv(f"{name}.attn.{projection}.proj", attention.width, width, 1)
    return tensors + _conv(f"{name}.attn.output.proj", width, attention.heads * attention.width, 1)


def read(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: gemma3n``: the MobileNet vision tower and the audio tower, which are idle, with
    their embedders.
    """
    outer = model.outer
    outer.ignore("initializer_range", "audio_soft_tokens_per_image")
    tokens = outer.integer("vision_soft_tokens_per_image", default=256)
    timm_architecture = config.text("architecture", default=ARCHITECTURE)
    if timm_architecture != ARCHITECTURE:
        config.fail("architecture", f"memcheck reads no {timm_architecture} tower", f"read is {ARCHITECTURE}")
    config.ignore("do_pooling", "model_args", "rms_norm_eps", "vocab_offset", "initializer_range", "model_type")
    config.ignore("num_classes", "label_names", "num_labels", "id2label", "label2id")
    width = config.integer("hidden_size", default=2048)
    vision_embedder = Embedder(
        name="embed_vision",
        rows=config.integer("vocab_size", default=128),
        width=width,
        image_tokens=tokens,
        side_pixels=SIDE,
    )
    if vision_embedder.width != LAST:
        config.fail("hidden_size", f"the tower's rows are {LAST} wide, not {vision_embedder.width}")
    section = outer.section("audio_config")
    audio, audio_embedder = _audio_tower(section)
    outer.notes += [note for note in section.notes if note not in outer.notes]
    norms = tuple(
        vector(f"{embedder.name}.soft_embedding_norm.weight", embedder.width, "norm")
        for embedder in (vision_embedder, audio_embedder)
    )
    tower = OtherTower(part="vision", blocks=(), tensors=tensors())
    return IdleTowers(
        (tower, OtherTower(part="projector", blocks=(), tensors=norms), audio), (vision_embedder, audio_embedder)
    )


def _audio_tower(config: ConfigReader) -> tuple[OtherTower, Embedder]:
    """Read the sound tower from ``audio_config``: two convolutions and conformer layers, and its token embedder."""
    width = config.integer("hidden_size", default=1536)
    heads = config.integer("conf_num_attention_heads", default=8)
    if width % heads:
        config.fail("conf_num_attention_heads", f"the tower's width {width} is no multiple of {heads} heads")
    depth = config.integer("conf_num_hidden_layers", default=12, maximum=MAX_LAYERS)
    kernel = config.integer("conf_conv_kernel_size", default=5)
    tensors = _subsampling_tensors(config, width)
    config.ignore(
        "model_type", "vocab_offset", "rms_norm_eps", "gradient_clipping", "conf_attention_chunk_size",
        "conf_attention_context_left", "conf_attention_context_right", "conf_attention_logit_cap", "initializer_range",
        "conf_reduction_factor", "conf_residual_weight", "sscp_conv_group_norm_eps", "sscp_conv_eps",
    )  # fmt: skip
    layer = idle_layer(_conformer_tensors(width, width // heads, kernel))
    # of each layer: five bounds of gradients, a scale and a cap of scores, a small mask, and a table of time scales
    tower = OtherTower(
        part="audio",
        path="model.audio_tower.",
        layers_path="conformer",
        blocks=((layer, depth),),
        tensors=tensors,
        buffers=(Buffers(8 * depth, 1, is_fp32=False), Buffers(1, depth * (width // 2))),
    )
    return tower, Embedder(name="embed_audio", rows=config.integer("vocab_size", default=128), width=width)


def _subsampling_tensors(config: ConfigReader, width: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of two convolutions over time and frequency, and of a matrix to ``width`` (``sscp``)."""
    frequency_bins = config.integer("input_feat_size", default=128)
    channels = config.integers("sscp_conv_channel_size") or (128, 32)
    kernels = _pairs(config, "sscp_conv_kernel_size", 3)
    strides = _pairs(config, "sscp_conv_stride_size", 2)
    if len(channels) != len(kernels):
        config.fail("sscp_conv_channel_size", f"{list(channels)} are not the channels of two convolutions")
    tensors: tuple[ParameterTensor, ...] = ()
    in_channels, path = 1, "subsample_conv_projection"
    for i, (out_channels, kernel, stride) in enumerate(zip(channels, kernels, strides, strict=True)):
        weight = ParameterTensor(f"{path}.conv_{i}.conv.weight", (out_channels, in_channels, *kernel), "audio")
        tensors += (weight, vector(f"{path}.conv_{i}.norm.weight", out_channels, "norm"))
        frequency_bins = (frequency_bins + 2 - kernel[1]) // stride[1] + 1  # padded by one on either side
        in_channels = out_channels
    return tensors + linear(f"{path}.input_proj_linear", width, in_channels * frequency_bins, "audio", "none")


def _pairs(config: ConfigReader, key: str, default: int) -> tuple[tuple[int, int], ...]:
    """Read from ``key`` two (time, frequency) pairs, one for each of the two convolutions: kernel sizes or strides.

    ``default``: all four numbers, if the key is absent.
    """
    value = config.raw(key)
    if value is None:
        return ((default, default),) * 2
    valid = []
    for pair in value if isinstance(value, (list, tuple)) else ():
        is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2
        if is_pair and all(type(number) is int and 0 < number < 64 for number in pair):
            valid.append((pair[0], pair[1]))
    if len(valid) != 2 or len(value) != 2:
        config.fail(key, f"{key} is not two pairs of small numbers")
    return tuple(valid)


def _conformer_tensors(width: int, head_dim: int, kernel: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of Gemma3nAudioConformerBlock: half a feed-forward, attention, convolution, the other half."""
    tensors: tuple[ParameterTensor, ...] = ()
    for half in ("ffw_layer_start", "ffw_layer_end"):
        tensors += linear(f"{half}.ffw_layer_1", 4 * width, width, "audio", "none")
        tensors += linear(f"{half}.ffw_layer_2", width, 4 * width, "audio", "none")
        tensors += (vector(f"{half}.pre_layer_norm.weight", width, "norm"),)
        tensors += (vector(f"{half}.post_layer_norm.weight", width, "norm"),)
    for name in ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.relative_position_embedding.pos_proj", "post"):
        tensors += linear(f"attention.{name}", width, width, "audio", "none")
    tensors += (vector("attention.attn.per_dim_scale", head_dim, "audio"),)
    tensors += linear("lconv1d.linear_start", 2 * width, width, "audio", "none")
    tensors += linear("lconv1d.linear_end", width, width, "audio", "none")
    tensors += (ParameterTensor("lconv1d.depthwise_conv1d.weight", (width, 1, kernel), "audio"),)
    norms = ("attention.pre_attn_norm", "attention.post_norm", "lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm")
    return tensors + tuple(vector(f"{name}.weight", width, "norm") for name in norms)
