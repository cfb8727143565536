"""HyperCLOVA X Vision V2: Qwen2.5-VL's tower, and a matrix after its merger (modeling_hyperclovax_vision_v2.py)."""

from __future__ import annotations

from memcheck.models.multimodal import AroundTower
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.towers.qwen import windowed
from memcheck.models.vision import Vision


def read(config: ConfigReader, around: AroundTower) -> Vision:
    """``model_type: hyperclovax_vision_v2``. Released files call the tower's type ``qwen2_5_vl``, its wrapper's."""
    outputs = around.language.hidden_size
    if config.text("model_type", default="qwen2_5_vl_vision") not in ("qwen2_5_vl", "qwen2_5_vl_vision"):
        config.fail("model_type", "memcheck reads no HyperCLOVA X with another tower than Qwen2.5-VL's")
    tower = windowed(config, around, "vision_model.merger")
    return tower._replace(
        kind="hyperclovax",
        projector=(*tower.projector, *linear("projector", outputs, tower.outputs, "projector", "none", bias=True)),
        outputs=outputs,
        processor="qwen:see_default",
        path="vision_model",
        projector_path="",
    )
