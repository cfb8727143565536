"""Towers that hear: Whisper's layers and a projector of Qwen2-Audio, Voxtral, Audio and Music Flamingo, and MOSS.

What they hold is counted; sounds have no memory model, so that they rest in steps of text alone.
modeling_qwen2_audio.py, modeling_voxtral.py, modeling_audioflamingo3.py, modeling_musicflamingo.py,
modeling_moss_transcribe_diarize.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.omni import whisper_tower
from memcheck.families.towers.parts import norm_pair
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import OtherTower, RestingTowers
from memcheck.record import Record

WIDTH = 1280


class WhisperSizes(Record):
    """Sizes where a configuration is silent: Whisper large's."""

    width: int = WIDTH
    depth: int = 32
    inner: int = 5120
    bins: int = 128


LARGE = WhisperSizes()
MEDIUM = WhisperSizes(width=1024, depth=24, inner=4096, bins=80)


def read_qwen2(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: qwen2_audio``: one matrix after the tower."""
    tower, width = _tower(config)
    outputs = around.language.hidden_size
    return _with(tower, linear("multi_modal_projector.linear", outputs, width, "projector", "none", bias=True))


def read_voxtral(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: voxtral``: frames side by side, two matrices without biases."""
    outputs = around.language.hidden_size
    around.outer.activation("projector_hidden_act", default="gelu")
    around.outer.ignore("hidden_size", "vocab_size")
    config.ignore("head_dim")
    tower, width = _tower(config)
    wide = config.integer("intermediate_size", default=4 * width)
    first = linear("multi_modal_projector.linear_1", outputs, wide, "projector", "none")
    return _with(tower, first + linear("multi_modal_projector.linear_2", outputs, outputs, "projector", "none"))


def read_flamingo(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: audioflamingo3``: two matrices with biases."""
    outputs, outer = around.language.hidden_size, around.outer
    outer.activation("projector_hidden_act", default="gelu")
    bias = outer.flag("projector_bias", default=True)
    tower, width = _tower(config)
    first = linear("multi_modal_projector.linear_1", outputs, width, "projector", "none", bias=bias)
    second = linear("multi_modal_projector.linear_2", outputs, outputs, "projector", "none", bias=bias)
    return _with(tower, first + second)


def read_music(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: musicflamingo``: Audio Flamingo 3's tower, and buffers of angles. The rotary base gives their
    number of places, a share of the tower's width their channels.
    """
    outer = around.outer
    outer.ignore("audio_frame_step", "audio_bos_token_id", "audio_eos_token_id", "max_position_embeddings", "head_dim")
    found = read_flamingo(config, around)
    fraction = outer.rotary_fraction(default=0.2)
    rotary = outer.section("rope_parameters")
    base = rotary.number("rope_theta", default=outer.number("rope_theta", default=1200.0))
    rotary.ignore("rope_type", "partial_rotary_factor")
    turned = int(config.integer("d_model", "hidden_size", default=WIDTH) * fraction)
    tower, projector = found.others
    return RestingTowers((tower._replace(table=int(base) * turned + 2 * (turned // 2)), projector))


def read_moss(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: moss_transcribe_diarize``: Whisper medium; frames side by side, two matrices, a norm."""
    outputs, outer = around.language.hidden_size, around.outer
    outer.activation("projector_hidden_act", default="silu")
    bias = outer.flag("projector_bias", default=True)
    outer.ignore("audio_chunk_size")
    joined = outer.integer("audio_merge_size", default=4)
    tower, width = _tower(config, MEDIUM)
    first = linear("multi_modal_projector.linear_1", outputs, joined * width, "projector", "none", bias=bias)
    second = linear("multi_modal_projector.linear_2", outputs, outputs, "projector", "none", bias=bias)
    return _with(tower, first + second + norm_pair("multi_modal_projector.norm", outputs))


def _with(tower: OtherTower, projector: tuple[ParameterTensor, ...]) -> RestingTowers:
    return RestingTowers((tower, OtherTower(part="projector", blocks=(), tensors=projector)))


def _tower(config: ConfigReader, silent: WhisperSizes = LARGE) -> tuple[OtherTower, int]:
    """The tower and its width. Positions are a parameter that wants no gradient."""
    width = config.integer("d_model", "hidden_size", default=silent.width)
    bins = config.integer("num_mel_bins", default=silent.bins)
    positions = config.integer("max_source_positions", default=1500)
    config.ignore("vocab_size", "layerdrop", "activation_function", "hidden_act")
    tensors = (
        ParameterTensor("conv1.weight", (width, bins, 3), "audio"),
        vector("conv1.bias", width, "audio"),
        ParameterTensor("conv2.weight", (width, width, 3), "audio"),
        vector("conv2.bias", width, "audio"),
        ParameterTensor("embed_positions.weight", (positions, width), "audio"),
        *norm_pair("layer_norm", width),
    )
    found = whisper_tower(config, tensors, width, key_bias=False, depth=silent.depth, inner=silent.inner)
    return found._replace(table=0), width
