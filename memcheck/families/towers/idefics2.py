"""Idefics 2: SigLIP on pictures of any size, a gated network, and a perceiver that makes as many tokens of each.

modeling_idefics2.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.siglip import IDEFICS2, siglip
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: idefics2``."""
    outer, language = around.outer, around.language
    outer.ignore("use_cache")
    tower = siglip(config, around, "idefics2", attention="masked", silent=IDEFICS2)
    config.ignore("tie_word_embeddings")
    section, hidden = outer.section("perceiver_config"), language.hidden_size
    section.ignore("model_type", "hidden_size", "rms_norm_eps", "initializer_range", "tie_word_embeddings")
    section.dropout("attention_dropout")
    perceiver = Perceiver(
        latents=section.integer("resampler_n_latents", default=64),
        heads=section.integer("resampler_n_heads", default=16),
        kv_heads=section.integer("num_key_value_heads", default=4),
        head_dim=section.integer("resampler_head_dim", default=96),
        activation=section.activation(default="silu"),
    )
    if perceiver.heads % perceiver.kv_heads:
        section.fail("num_key_value_heads", f"{perceiver.heads} heads cannot share {perceiver.kv_heads} of keys")
    depth = section.integer("resampler_depth", default=3, maximum=MAX_LAYERS)
    text = outer.raw("text_config")
    inner = ConfigReader(text, "idefics2", "text_config.") if isinstance(text, dict) else outer
    projection = _gated("modality_projection", tower.hidden, inner.integer("intermediate_size", default=14336), hidden)
    layers = tuple(t for i in range(depth) for t in _layer(f"perceiver_resampler.layers.{i}", hidden, perceiver))
    return tower._replace(
        projector=(
            *projection,
            ParameterTensor("perceiver_resampler.latents", (perceiver.latents, hidden), "projector"),
            *layers,
            ParameterTensor("perceiver_resampler.norm.weight", (hidden,), "norm"),
        ),
        perceiver=perceiver,
        resampled=perceiver.latents,
        activation=inner.activation(default="silu"),
        tile=0,
        side=tower.tile,
        mask_bytes=8,
        separators=2,
        path="vision_model",
        projector_path="connector",
    )


def _gated(name: str, inputs: int, inner: int, outputs: int) -> tuple[ParameterTensor, ...]:
    return (
        *linear(f"{name}.gate_proj", inner, inputs, "projector", "none"),
        *linear(f"{name}.up_proj", inner, inputs, "projector", "none"),
        *linear(f"{name}.down_proj", outputs, inner, "projector", "none"),
    )


def _layer(name: str, hidden: int, p: Perceiver) -> tuple[ParameterTensor, ...]:
    """The parameters of one perceiver layer, in the order of the forward pass. ``hidden``: the width of its rows."""
    heads, kv = p.heads * p.head_dim, p.kv_heads * p.head_dim
    return (
        ParameterTensor(f"{name}.input_latents_norm.weight", (hidden,), "norm"),
        ParameterTensor(f"{name}.input_context_norm.weight", (hidden,), "norm"),
        *linear(f"{name}.self_attn.q_proj", heads, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.k_proj", kv, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.v_proj", kv, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.o_proj", hidden, heads, "projector", "none"),
        ParameterTensor(f"{name}.post_attention_layernorm.weight", (hidden,), "norm"),
        *_gated(f"{name}.mlp", hidden, 4 * hidden, hidden),
    )
