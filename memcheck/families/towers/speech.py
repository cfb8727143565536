"""Towers that hear, of Qwen3-ASR and GLM-ASR: encoders of their own, which are idle in steps without sounds.

modeling_qwen3_asr.py, modeling_glmasr.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.omni import convolved, sizes, whisper_tower
from memcheck.families.towers.parts import norm_pair
from memcheck.models.parts.matrices import linear, vector
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import Block, ParameterTensor
from memcheck.models.vision import OtherTower, RestingTowers


def read_qwen3(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: qwen3_asr``: Qwen3-Omni's tower, whose last two matrices are a projector."""
    outer = around.outer
    outer.ignore("timestamp_token_id", "initializer_range", "token_classification_bias")
    width, made = sizes(config, around.language.hidden_size, width=1024)
    positions = config.integer("max_position_embeddings", default=13)
    tower = whisper_tower(config, convolved(config, width), width, key_bias=True, depth=24, inner=4096)
    first = linear("multi_modal_projector.linear_1", width, width, "projector", "none", bias=True)
    second = linear("multi_modal_projector.linear_2", made, width, "projector", "none", bias=True)
    projector = OtherTower(part="projector", blocks=(), tensors=first + second)
    return RestingTowers((tower._replace(table=positions * width), projector))


def read_glm(config: ConfigReader, around: AroundTower) -> RestingTowers:
    """``model_type: glmasr``: Whisper's convolutions, layers with rotary positions; rows side by side are projected."""
    outputs = around.language.hidden_size
    around.outer.activation("projector_hidden_act", default="gelu")
    width, heads = config.integer("hidden_size", default=1280), config.integer("num_attention_heads", default=20)
    inner = config.integer("intermediate_size", default=5120)
    keys = (config.optional_integer("num_key_value_heads") or heads) * (width // heads)
    depth = config.integer("num_hidden_layers", default=32, maximum=MAX_LAYERS)
    bins = config.integer("num_mel_bins", default=128)
    config.ignore(
        "model_type", "hidden_act", "max_position_embeddings", "initializer_range", "rope_parameters",
        "attention_dropout", "partial_rotary_factor", "head_dim",
    )  # fmt: skip
    block = Block(
        mixer=None,
        mlp=None,
        input_norm=None,
        mlp_norm=None,
        extra_tensors=(
            *linear("self_attn.q_proj", width, width, "audio", "none", bias=True),
            *linear("self_attn.k_proj", keys, width, "audio", "none"),
            *linear("self_attn.v_proj", keys, width, "audio", "none", bias=True),
            *linear("self_attn.o_proj", width, width, "audio", "none", bias=True),
            *linear("mlp.fc1", inner, width, "audio", "none", bias=True),
            *linear("mlp.fc2", width, inner, "audio", "none", bias=True),
            *norm_pair("input_layernorm", width),
            *norm_pair("post_attention_layernorm", width),
        ),
    )
    ends = (
        ParameterTensor("conv1.weight", (width, bins, 3), "audio"),
        vector("conv1.bias", width, "audio"),
        ParameterTensor("conv2.weight", (width, width, 3), "audio"),
        vector("conv2.bias", width, "audio"),
        *norm_pair("norm", width),
    )
    first = linear("multi_modal_projector.linear_1", 2 * outputs, inner, "projector", "none", bias=True)
    second = linear("multi_modal_projector.linear_2", outputs, 2 * outputs, "projector", "none", bias=True)
    tower = OtherTower(part="audio", blocks=((block, depth),), tensors=ends)
    return RestingTowers((tower, OtherTower(part="projector", blocks=(), tensors=first + second)))
