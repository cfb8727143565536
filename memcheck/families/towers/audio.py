"""Towers that hear: Whisper's layers and a projector of Qwen2-Audio, Voxtral, Audio and Music Flamingo, and MOSS.

What they hold is counted; sounds have no memory model, so that they rest in steps of text alone.
modeling_qwen2_audio.py, modeling_voxtral.py, modeling_audioflamingo3.py, modeling_musicflamingo.py,
modeling_moss_transcribe_diarize.py of transformers 5.23.

Towers that hear, of Qwen3-ASR and GLM-ASR: encoders of their own, which are idle in steps without sounds.

modeling_qwen3_asr.py, modeling_glmasr.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import idle_layer, idle_projector, norm_pair, two_matrices
from memcheck.families.towers.omni import convolved, sizes, time_convolutions, whisper_tower
from memcheck.models.decoder import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Buffers, IdleTowers, OtherTower
from memcheck.record import Record

WIDTH = 1280
MATRICES = ("multi_modal_projector.linear_1", "multi_modal_projector.linear_2")


class WhisperSizes(Record):
    """Sizes where a configuration is silent: Whisper large's."""

    width: int = WIDTH
    depth: int = 32
    inner: int = 5120
    bins: int = 128


LARGE = WhisperSizes()
MEDIUM = WhisperSizes(width=1024, depth=24, inner=4096, bins=80)


def read_qwen2(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: qwen2_audio``: one matrix after the tower."""
    tower, width = _whisper_encoder(config)
    outputs = model.language.hidden_size
    return _idle_towers(tower, linear("multi_modal_projector.linear", outputs, width, "projector", "none", bias=True))


def read_voxtral(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: voxtral``: frames side by side, two matrices without biases."""
    outputs = model.language.hidden_size
    model.outer.activation("projector_hidden_act", default="gelu")  # checked alone: nothing runs
    model.outer.ignore("hidden_size", "vocab_size")
    config.ignore("head_dim")
    tower, width = _whisper_encoder(config)
    merged_width = config.integer("intermediate_size", default=4 * width)
    return _idle_towers(tower, two_matrices(MATRICES, merged_width, outputs, outputs, bias=False))


def read_flamingo(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: audioflamingo3``: two matrices with biases."""
    outputs, outer = model.language.hidden_size, model.outer
    outer.activation("projector_hidden_act", default="gelu")  # checked alone: nothing runs
    bias = outer.flag("projector_bias", default=True)
    tower, width = _whisper_encoder(config)
    return _idle_towers(tower, two_matrices(MATRICES, width, outputs, outputs, bias=bias))


def read_music(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: musicflamingo``: Audio Flamingo 3's tower with a rotation in time, whose tables
    are buffers.

    The table of angles has as many positions as the rotary base, and as many channels as ``partial_rotary_factor`` of
    the tower's width. Two vectors of frequencies are added.
    """
    outer = model.outer
    outer.ignore("audio_frame_step", "audio_bos_token_id", "audio_eos_token_id", "max_position_embeddings", "head_dim")
    architecture = read_flamingo(config, model)
    fraction = outer.rotary_fraction(default=0.2)
    rotary = outer.section("rope_parameters")
    base = rotary.number("rope_theta", default=outer.number("rope_theta", default=1200.0))
    rotary.ignore("rope_type", "partial_rotary_factor")
    rotary_dim = int(config.integer("d_model", "hidden_size", default=WIDTH) * fraction)
    tower, projector = architecture.other_towers
    return IdleTowers(
        (tower._replace(buffers=(Buffers(1, int(base) * rotary_dim + 2 * (rotary_dim // 2)),)), projector)
    )


def read_moss(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: moss_transcribe_diarize``: Whisper medium; frames side by side, two matrices, a
    norm.
    """
    outputs, outer = model.language.hidden_size, model.outer
    outer.activation("projector_hidden_act", default="silu")  # checked alone: nothing runs
    bias = outer.flag("projector_bias", default=True)
    outer.ignore("audio_chunk_size")
    merge = outer.integer("audio_merge_size", default=4)
    tower, width = _whisper_encoder(config, MEDIUM)
    matrices = two_matrices(MATRICES, merge * width, outputs, outputs, bias=bias)
    return _idle_towers(tower, matrices + norm_pair("multi_modal_projector.norm", outputs))


def _idle_towers(tower: OtherTower, projector: tuple[ParameterTensor, ...]) -> IdleTowers:
    """The tower and its projector, both idle in steps of text."""
    return IdleTowers((tower, idle_projector(projector)))


def _whisper_encoder(config: ConfigReader, default: WhisperSizes = LARGE) -> tuple[OtherTower, int]:
    """Read Whisper's encoder; return it and its width. ``default``: sizes for absent keys.

    Its positions are a frozen parameter.
    """
    width = config.integer("d_model", "hidden_size", default=default.width)
    mel_bins = config.integer("num_mel_bins", default=default.bins)
    positions = config.integer("max_source_positions", default=1500)
    config.ignore("vocab_size", "layerdrop", "activation_function", "hidden_act")
    tensors = (
        *time_convolutions(width, mel_bins),
        ParameterTensor("embed_positions.weight", (positions, width), "audio"),
        *norm_pair("layer_norm", width),
    )
    tower = whisper_tower(config, tensors, width, key_bias=False, depth=default.depth, inner=default.inner)
    return tower._replace(buffers=()), width


def read_qwen3(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: qwen3_asr``: Qwen3-Omni's tower, whose last two matrices are a projector."""
    outer = model.outer
    outer.ignore("timestamp_token_id", "initializer_range", "token_classification_bias")
    width, outputs = sizes(config, model.language.hidden_size, width=1024)
    positions = config.integer("max_position_embeddings", default=13)
    tower = whisper_tower(config, convolved(config, width), width, key_bias=True, depth=24, inner=4096)
    buffers = (Buffers(1, positions * width),)
    return _idle_towers(tower._replace(buffers=buffers), two_matrices(MATRICES, width, width, outputs))


def read_glm(config: ConfigReader, model: TowerContext) -> IdleTowers:
    """Read the tower of ``model_type: glmasr``: Whisper's convolutions, layers with rotary positions; rows side by side
    are projected.
    """
    outputs = model.language.hidden_size
    model.outer.activation("projector_hidden_act", default="gelu")  # checked alone: nothing runs
    width, heads = config.integer("hidden_size", default=1280), config.integer("num_attention_heads", default=20)
    inner = config.integer("intermediate_size", default=5120)
    key_width = (config.optional_integer("num_key_value_heads") or heads) * (width // heads)
    depth = config.integer("num_hidden_layers", default=32, maximum=MAX_LAYERS)
    mel_bins = config.integer("num_mel_bins", default=128)
    config.ignore(
        "model_type", "hidden_act", "max_position_embeddings", "initializer_range", "rope_parameters",
        "attention_dropout", "partial_rotary_factor", "head_dim",
    )  # fmt: skip
    layer = idle_layer(
        (
            *linear("self_attn.q_proj", width, width, "audio", "none", bias=True),
            *linear("self_attn.k_proj", key_width, width, "audio", "none"),
            *linear("self_attn.v_proj", key_width, width, "audio", "none", bias=True),
            *linear("self_attn.o_proj", width, width, "audio", "none", bias=True),
            *linear("mlp.fc1", inner, width, "audio", "none", bias=True),
            *linear("mlp.fc2", width, inner, "audio", "none", bias=True),
            *norm_pair("input_layernorm", width),
            *norm_pair("post_attention_layernorm", width),
        )
    )
    tensors = time_convolutions(width, mel_bins) + norm_pair("norm", width)
    tower = OtherTower(
        part="audio", path="model.audio_tower.", layers_path="layers", blocks=((layer, depth),), tensors=tensors
    )
    return _idle_towers(tower, two_matrices(MATRICES, inner, 2 * outputs, outputs))
