"""Gemma's audio tower, a conformer: what is resident of it in a step without sounds (modeling_gemma4.py)."""

from __future__ import annotations

from memcheck.models.parts.matrices import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import OtherTower


def read_audio(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    """The tower of Gemma 4's ``audio_config`` and its projection; none where that is null or absent."""
    if outer.raw("audio_config") is None:
        return ()
    config = outer.section("audio_config")
    width = config.integer("hidden_size", default=1024)
    heads = config.integer("num_attention_heads", default=8)
    if width % heads:
        config.fail("num_attention_heads", f"the tower's width {width} is no multiple of {heads} heads")
    made = config.integer("output_proj_dims", default=1536)
    first, second = _channels(config)
    kernel = config.integer("conv_kernel_size", default=5)
    config.ignore(
        "model_type", "hidden_act", "residual_weight", "attention_chunk_size", "attention_context_left",
        "attention_context_right", "attention_logit_cap", "attention_invalid_logits_value", "gradient_clipping",
        "initializer_range",
    )  # fmt: skip
    depth = config.integer("num_hidden_layers", default=12, maximum=MAX_LAYERS)
    clipped = config.flag("use_clipped_linears", default=True)
    tensors = (
        ParameterTensor("subsample_conv_projection.layer0.conv.weight", (first, 1, 3, 3), "audio"),
        vector("subsample_conv_projection.layer0.norm.weight", first, "norm"),
        ParameterTensor("subsample_conv_projection.layer1.conv.weight", (second, first, 3, 3), "audio"),
        vector("subsample_conv_projection.layer1.norm.weight", second, "norm"),
        *linear("subsample_conv_projection.input_proj_linear", width, first // 4 * second, "audio", "none"),
        *linear("output_proj", made, width, "audio", "none", bias=True),
        *linear("embed_audio.embedding_projection", outputs, made, "projector", "none"),
    )
    block = Block(
        mixer=None,
        mlp=None,
        input_norm=None,
        mlp_norm=None,
        extra_tensors=_layer(width, width // heads, kernel),
    )
    scalars = 10 * 4 * depth if clipped else 0
    return (OtherTower(part="audio", blocks=((block, depth),), tensors=tensors, scalars=scalars),)


def _channels(config: ConfigReader) -> tuple[int, int]:
    stated = config.integers("subsampling_conv_channels")
    if stated is None:
        return 128, 32
    if len(stated) != 2:  # two convolutions
        config.fail("subsampling_conv_channels", f"{list(stated)} are not the channels of two convolutions")
    return stated[0], stated[1]


def _layer(width: int, head_dim: int, kernel: int) -> tuple[ParameterTensor, ...]:
    """Two halves of a feed-forward network around attention and a convolution (Gemma4AudioLayer)."""
    found: tuple[ParameterTensor, ...] = ()
    for half in ("feed_forward1", "feed_forward2"):
        found += linear(f"{half}.ffw_layer_1.linear", 4 * width, width, "audio", "none")
        found += linear(f"{half}.ffw_layer_2.linear", width, 4 * width, "audio", "none")
        found += (vector(f"{half}.pre_layer_norm.weight", width, "norm"),)
        found += (vector(f"{half}.post_layer_norm.weight", width, "norm"),)
    for name in ("q_proj.linear", "k_proj.linear", "v_proj.linear", "post.linear", "relative_k_proj"):
        found += linear(f"self_attn.{name}", width, width, "audio", "none")
    found += (vector("self_attn.per_dim_scale", head_dim, "audio"),)
    found += linear("lconv1d.linear_start.linear", 2 * width, width, "audio", "none")
    found += linear("lconv1d.linear_end.linear", width, width, "audio", "none")
    found += (ParameterTensor("lconv1d.depthwise_conv1d.weight", (width, 1, kernel), "audio"),)
    norms = ("lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out")
    return found + tuple(vector(f"{name}.weight", width, "norm") for name in norms)
