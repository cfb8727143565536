"""The thinkers of Qwen2.5-Omni and Qwen3-Omni: the towers of Qwen2.5-VL and Qwen3-VL, and an audio tower.

modeling_qwen2_5_omni.py, modeling_qwen3_omni_moe.py of transformers 5.23. What the audio tower holds is counted; sounds
have no memory model, so that it never runs.
"""

from __future__ import annotations

from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import idle_layer, norm_pair
from memcheck.families.towers.qwen import MergerNames, deepstack_tower
from memcheck.families.towers.qwen import read_2_5 as read_windowed
from memcheck.models.decoder import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import Buffers, OtherTower, TowerAttention, Vision

HARMLESS = (
    "position_id_per_seconds", "seconds_per_chunk", "audio_start_token_id", "audio_end_token_id", "user_token_id",
    "initializer_range", "vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id",
)  # fmt: skip


def read_2_5(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: qwen2_5_omni_thinker``: q, k and v have a matrix each."""
    model.outer.ignore(*HARMLESS)
    tower = read_windowed(config, model)
    return tower._replace(
        blocks=tuple((_separate(block, tower.hidden), n) for block, n in tower.blocks),
        other_towers=_audio_2_5(model.outer, model.language.hidden_size),
    )


def read_3(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: qwen3_omni_moe_thinker``: other names of the mergers' modules."""
    model.outer.ignore(*HARMLESS)
    config.ignore("image_size")
    names = MergerNames(norm="ln_q", matrices=("mlp.0", "mlp.2"), stacked="merger_list")
    tower = deepstack_tower(config, model, names, (8, 16, 24))
    audio_towers = _audio_3(model.outer, model.language.hidden_size)
    return tower._replace(
        other_towers=audio_towers, processor="processors:process_2"
    )  # Qwen2-VL's image processor, with patches of 16


def _separate(block: Block, width: int) -> Block:
    """Return a tower layer with separate matrices for q, k and v. ``width``: the tower's hidden size."""
    mixer = block.mixer
    if not isinstance(mixer, TowerAttention):
        return block
    tensors: tuple[ParameterTensor, ...] = ()
    for name in ("q", "k", "v"):
        tensors += linear(f"attn.{name}", width, width, "attention", "column", bias=True)
    tensors += linear("attn.proj", width, width, "attention", "row", bias=True)
    return block._replace(mixer=mixer._replace(kind="packed-separate", tensors=tensors))


def _audio_2_5(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    """Read Qwen2.5-Omni's audio tower: two convolutions over time, Whisper's layers, a pooling and a matrix.

    ``outputs``: the language model's hidden size. The keys have no bias.
    """
    config = outer.section("audio_config")
    width, made = sizes(config, outputs)
    bins = config.integer("num_mel_bins", default=128)
    tensors = (
        *time_convolutions(width, bins),
        ParameterTensor("audio_bos_eos_token.weight", (2, made), "audio"),
        *norm_pair("ln_post", width),
        *linear("proj", made, width, "audio", "none", bias=True),
    )
    return (whisper_tower(config, tensors, width, key_bias=False, depth=32, inner=5120),)


def _audio_3(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    """Read Qwen3-Omni's audio tower: three convolutions over time and frequency, Whisper's layers, two matrices.

    ``outputs``: the language model's hidden size.
    """
    config = outer.section("audio_config")
    width, made = sizes(config, outputs)
    tensors = (
        *convolved(config, width),
        *linear("proj1", width, width, "audio", "none", bias=True),
        *linear("proj2", made, width, "audio", "none", bias=True),
    )
    return (whisper_tower(config, tensors, width, key_bias=True, depth=32, inner=5120),)


def time_convolutions(width: int, mel_bins: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of Whisper's two convolutions over time, from ``mel_bins`` to ``width`` channels."""
    return (
        ParameterTensor("conv1.weight", (width, mel_bins, 3), "audio"),
        vector("conv1.bias", width, "audio"),
        ParameterTensor("conv2.weight", (width, width, 3), "audio"),
        vector("conv2.bias", width, "audio"),
    )


def convolved(config: ConfigReader, width: int) -> tuple[ParameterTensor, ...]:
    """List the tensors before and after the layers of Qwen3's audio towers: three convolutions and a matrix, and a
    norm.
    """
    bins = config.integer("num_mel_bins", default=128)
    inside = config.integer("downsample_hidden_size", default=480)
    config.ignore("n_window_infer", "conv_chunksize")
    tensors: tuple[ParameterTensor, ...] = ()
    for index, colours in enumerate((1, inside, inside), 1):
        tensors += (
            ParameterTensor(f"conv2d{index}.weight", (inside, colours, 3, 3), "audio"),
            vector(f"conv2d{index}.bias", inside, "audio"),
        )
    for _ in range(3):
        bins = (bins + 1) // 2  # a stride of two each
    return (*tensors, *linear("conv_out", width, inside * bins, "audio", "none"), *norm_pair("ln_post", width))


def sizes(config: ConfigReader, outputs: int, width: int = 1280) -> tuple[int, int]:
    """Return the audio tower's width and its output width, which is the language model's (``outputs``)."""
    width = config.integer("d_model", "hidden_size", default=width)
    output_width = config.integer("output_dim", default=3584)
    if output_width != outputs:
        config.fail(
            "output_dim", f"output_dim = {output_width} of the audio tower is not the language model's width {outputs}"
        )
    return width, output_width


def whisper_tower(
    config: ConfigReader, tensors: tuple[ParameterTensor, ...], width: int, *, key_bias: bool, depth: int, inner: int
) -> OtherTower:
    """Return Whisper's layers as an audio tower that has weights and does not run.

    ``tensors``: those outside the layers. ``width``: hidden size. ``key_bias``: the keys' matrix has a
    bias. ``depth``, ``inner``: number of layers and MLP width that apply where the configuration states none.
    """
    layers = config.integer("encoder_layers", "num_hidden_layers", default=depth, maximum=MAX_LAYERS)
    inner = config.integer("encoder_ffn_dim", "intermediate_size", default=inner)
    positions = config.integer("max_source_positions", default=1500)
    config.ignore(
        "model_type", "encoder_attention_heads", "num_attention_heads", "n_window", "scale_embedding",
        "activation_function", "initializer_range", "dropout", "attention_dropout", "activation_dropout",
        "encoder_layerdrop",
    )  # fmt: skip
    layer_tensors: tuple[ParameterTensor, ...] = ()
    for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
        bias = key_bias or name != "k_proj"
        layer_tensors += linear(f"self_attn.{name}", width, width, "audio", "none", bias=bias)
    layer_tensors += (
        *norm_pair("self_attn_layer_norm", width),
        *linear("fc1", inner, width, "audio", "none", bias=True),
        *linear("fc2", width, inner, "audio", "none", bias=True),
        *norm_pair("final_layer_norm", width),
    )
    return OtherTower(
        part="audio",
        path="model.audio_tower.",
        layers_path="layers",
        blocks=((idle_layer(layer_tensors), layers),),
        tensors=tensors,
        buffers=(Buffers(1, positions * width),),
    )
