"""Aya Vision and Command A Vision: SigLIP's tiles, pixels shuffled, one matrix to two halves that gate each other.

modeling_aya_vision.py, modeling_cohere2_vision.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import norm_pair
from memcheck.families.towers.siglip import pooling_head, siglip
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def read_aya(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: aya_vision``: rows of the last layer before the tower's norm, and a norm of the shuffled ones."""
    outer = around.outer
    layer = outer.raw("vision_feature_layer")
    if layer not in (None, -1) or outer.text("vision_feature_select_strategy", default="full") != "full":
        outer.fail("vision_feature_layer", "only all rows of the last layer have a memory model")
    outer.ignore("adapter_layer_norm_eps")
    tower = siglip(config, around, "aya_vision", attention="separate")
    factor = outer.integer("downsample_factor", default=2) ** 2
    inner = outer.integer("alignment_intermediate_size", default=around.language.hidden_size)
    return _projected(config, around, tower, factor, inner)._replace(
        closing=(),
        unused=(*tower.closing, *pooling_head(config, tower)),
        projector=(
            *norm_pair("layernorm", tower.hidden * factor),
            *_matrices(around, tower.hidden * factor, inner),
        ),
        processor="tiles:see_internvl",
    )


def read_cohere2(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: cohere2_vision``."""
    tower = siglip(config, around, "cohere2_vision", attention="separate")
    factor = around.outer.integer("downsample_factor", default=2) ** 2
    inner = around.outer.integer("alignment_intermediate_size", default=36864)
    return _projected(config, around, tower, factor, inner)._replace(
        unused=pooling_head(config, tower),
        projector=_matrices(around, tower.hidden * factor, inner),
        processor="tiles:see_cohere2",
    )


def _matrices(around: AroundTower, width: int, inner: int) -> tuple[ParameterTensor, ...]:
    first = linear("linear_1", inner, width, "projector", "none", bias=True)
    return first + linear("linear_2", around.language.hidden_size, inner // 2, "projector", "none", bias=True)


def _projected(config: ConfigReader, around: AroundTower, tower: Vision, factor: int, inner: int) -> Vision:
    around.outer.ignore("image_seq_length")
    if inner % 2:
        around.outer.fail("alignment_intermediate_size", f"{inner} cannot be halved")
    if tower.tile % factor:
        config.fail("image_size", f"{tower.tile} patches of a tile are no multiple of the {factor} that are merged")
    return tower._replace(merge=factor, tile_tokens=tower.tile // factor)
