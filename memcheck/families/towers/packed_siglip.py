"""SigLIP on the rows of all pictures in one sequence, rotated by place, a kernel each: PaddleOCR-VL, VideoLLaMA 3.

modeling_paddleocr_vl.py, modeling_video_llama_3.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.families.multimodal import AroundTower
from memcheck.families.towers.parts import norm_pair
from memcheck.families.towers.siglip import siglip
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.vision import Vision


def read_paddle(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: paddleocr_vl``: positions between grid points, a norm, two matrices for four patches each."""
    outputs = around.language.hidden_size
    around.outer.ignore("vision_start_token_id", "vision_end_token_id")
    config.ignore("temporal_patch_size", "tokens_per_second", "model_type")
    tower = siglip(config, around, "paddleocr", attention="qwen-separate")
    merge = config.integer("spatial_merge_size", default=2) ** 2
    wide = tower.hidden * merge
    first = linear("linear_1", wide, wide, "projector", "none", bias=True)
    second = linear("linear_2", outputs, wide, "projector", "none", bias=True)
    return tower._replace(
        merge=merge,
        hooked=False,
        tile=0,
        projector=(*norm_pair("pre_norm", tower.hidden), *first, *second),
        processor="qwen:see_paddle",
        separators=2,
        gives_out=False,
        activation="gelu",
        path="visual",
        projector_path="projector",
    )
