"""Towers that hear: Whisper's layers and a projector of Qwen2-Audio, Voxtral and Audio Flamingo 3.

What they hold is counted; sounds have no memory model, so that they rest in steps of text alone.
modeling_qwen2_audio.py, modeling_voxtral.py, modeling_audioflamingo3.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.reader import ConfigReader
from memcheck.models.towers.omni import whisper_tower
from memcheck.models.towers.parts import norm_pair
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import OtherTower, RestingTowers

DEPTH, INNER, WIDTH = 32, 5120, 1280
"""Whisper large has these sizes, and all of them have its layers."""


def read_qwen2(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: qwen2_audio``: one matrix behind the tower."""
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


def _with(tower: OtherTower, projector: tuple[ParameterTensor, ...]) -> RestingTowers:
    return RestingTowers((tower, OtherTower(part="projector", blocks=(), tensors=projector)))


def _tower(config: ConfigReader) -> tuple[OtherTower, int]:
    """The tower and its width. Positions are a parameter that wants no gradient."""
    width = config.integer("d_model", "hidden_size", default=WIDTH)
    bins = config.integer("num_mel_bins", default=128)
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
    found = whisper_tower(config, tensors, width, key_bias=False, depth=DEPTH, inner=INNER)
    return found._replace(table=0), width
