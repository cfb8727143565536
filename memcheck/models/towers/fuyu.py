"""Fuyu: a matrix makes rows of patches, and nothing else looks at pictures (modeling_fuyu.py of transformers 5.23)."""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.vision import Vision

FLAT = (
    "attention_dropout", "hidden_act", "hidden_dropout", "hidden_size", "intermediate_size", "layer_norm_eps",
    "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "partial_rotary_factor", "qk_layernorm",
    "rope_scaling", "rope_theta", "use_cache", "vocab_size",
)  # fmt: skip
"""What the released file repeats of its language model, whose own section counts (FuyuConfig.__post_init__)."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: fuyu``. ``image_size`` sizes nothing."""
    patch, colours = config.integer("patch_size", default=30), config.integer("num_channels", default=3)
    config.ignore("image_size", "initializer_range", *FLAT)
    outputs = around.language.hidden_size
    return Vision(
        kind="fuyu",
        hidden=outputs,
        blocks=(),
        channels=colours * patch * patch,
        merge=1,
        outputs=outputs,
        stem=linear("vision_embed_tokens", outputs, colours * patch * patch, "vision", "none", bias=True),
        projector=(),
        hooked=False,
        cast=False,
        narrow=True,
        gives_out=False,
        patch=patch,
        processor="lines:see",
        path="",
        projector_path="",
    )
