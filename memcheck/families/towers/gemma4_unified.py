"""Gemma 4 without towers: a matrix between norms makes rows of merged patches (modeling_gemma4_unified.py)."""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.gemma4 import BUDGETS, SOFT_TOKENS
from memcheck.families.towers.parts import norm_pair
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import OtherTower, Vision


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: gemma4_unified``. Sounds are projected by one matrix, which is idle in a step without them."""
    outputs, outer = around.language.hidden_size, around.outer
    outer.ignore("initializer_range")
    patch = config.integer("patch_size", default=16)
    pooled = config.integer("pooling_kernel_size", default=3)
    side = config.integer("model_patch_size", default=patch * pooled)
    if side != patch * pooled:
        config.fail("model_patch_size", f"model_patch_size is not {patch} x {pooled}, which its class makes of it")
    width = config.integer("mm_embed_dim", default=3840)
    if config.integer("output_proj_dims", default=3840) != width:
        config.fail("output_proj_dims", f"output_proj_dims is not {width}, the width of what is projected")
    table = config.integer("mm_posemb_size", default=1120)
    soft_tokens = config.integer("num_soft_tokens", default=SOFT_TOKENS)
    config.ignore("model_type", "rms_norm_eps", "initializer_range")
    channels = 3 * side * side
    return Vision(
        kind="gemma4_unified",
        hidden=width,
        blocks=(),
        channels=channels,
        merge=1,
        outputs=outputs,
        stem=(
            *norm_pair("patch_ln1", channels),
            *linear("patch_dense", width, channels, "vision", "none", bias=True),
            *norm_pair("patch_ln2", width),
            ParameterTensor("pos_embedding", (table, 2, width), "position"),
            *norm_pair("pos_norm", width),
        ),
        projector=linear("embedding_projection", outputs, width, "projector", "none"),
        hooked=False,
        tile=soft_tokens,
        tile_tokens=soft_tokens,
        budgets=BUDGETS,
        position_bytes=2 * 8,
        patch=patch,
        processor="soft_tokens:see_merged",
        separators=2,
        others=_sounds(outer, outputs),
        path="embed_vision",
        projector_path="embed_vision.multimodal_embedder",
    )


def _sounds(outer: ConfigReader, outputs: int) -> tuple[OtherTower, ...]:
    if outer.raw("audio_config") is None:
        return ()
    config = outer.section("audio_config")
    width = config.integer("audio_embed_dim", "audio_samples_per_token", "hidden_size", "output_proj_dims", default=640)
    config.ignore("model_type", "rms_norm_eps", "initializer_range")
    projection = linear("embed_audio.embedding_projection", outputs, width, "projector", "none")
    return (OtherTower(part="audio", blocks=(), tensors=projection),)
