"""Phi-4-multimodal on pictures: SigLIP under padding masks, rows pooled by fours; the audio tower is idle.

modeling_phi4_multimodal.py of transformers 5.23.
"""

from __future__ import annotations

from math import isqrt

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.phi4_audio import read as read_audio
from memcheck.families.towers.siglip import SiglipSizes, pooling_head, siglip
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Mlp, ParameterTensor
from memcheck.models.vision import Vision

SILENT = SiglipSizes(width=1152, heads=16, inner=4304, depth=27, side=448, patch=14)
POOLED = 2
"""Rows and columns of patches that become one image token (``AvgPool2d``)."""


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: phi4_multimodal``, whose towers are modules of the language model."""
    outer, outputs = around.outer, around.language.hidden_size
    if outer.number("embd_pdrop", default=0.0):
        outer.fail("embd_pdrop", "a dropout on image tokens has no memory model", "it is 0 in released files")
    tower = siglip(config, around, "phi4", attention="masked-apart", silent=SILENT)
    side = tower.patch * isqrt(tower.tile)
    config.ignore("model_type", "image_token_id")
    crop, layer = config.integer("crop_size", default=side), config.raw("feature_layer")
    layer = -2 if layer is None else layer
    if crop != side:
        config.fail("crop_size", f"crops of {crop} pixels have no memory model where image_size is {side}")
    if side // tower.patch % POOLED:
        config.fail("image_size", f"an odd number of patches a side has no memory model: {side // tower.patch}")
    ((block, depth),) = tower.blocks
    if isinstance(block.mlp, Mlp):
        block = block._replace(mlp=block.mlp._replace(copied=True))
    if not isinstance(layer, int) or isinstance(layer, bool) or not 0 < depth + 1 + layer <= depth:
        config.fail("feature_layer", f"feature_layer = {layer!r} has no memory model", "one layer from the end is")
    read_layers = depth + 1 + layer
    first = linear("img_projection_up", outputs, tower.hidden, "projector", "none", bias=True)
    return tower._replace(
        blocks=((block, read_layers),),
        idle=((block, depth - read_layers),) if read_layers < depth else (),
        closing=(),
        unused=(*tower.closing, *pooling_head(config, tower)),
        projector=(
            ParameterTensor("global_img_feature_extensor", (1, 1, tower.hidden), "projector"),
            ParameterTensor("sub_img_feature_extensor", (1, 1, 1, tower.hidden), "projector"),
            *first,
            *linear("img_projection_down", outputs, outputs, "projector", "none", bias=True),
        ),
        merge=POOLED * POOLED,
        tile_tokens=tower.tile // (POOLED * POOLED),
        position_bytes=4,
        processor="hd:see",
        puts=True,
        gives_out=False,
        activation="gelu",
        others=(read_audio(outer.section("audio_config"), outputs),),
        path="embed_tokens_extend.image_embed.img_processor",
        projector_path="embed_tokens_extend.image_embed",
    )
