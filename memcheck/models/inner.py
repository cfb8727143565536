"""The part of a configuration that is read where others are switched off, or where one alone is trained."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.models.errors import ArchitectureError
from memcheck.models.tower_readers import HEARING
from memcheck.models.wrappers import WRAPPERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

THINKERS: dict[str, str] = {
    "qwen2_5_omni": "qwen2_5_omni_thinker",
    "qwen3_omni_moe": "qwen3_omni_moe_thinker",
}
"""Models that speak: the ``model_type`` of the part in ``thinker_config``, which understands and is trained."""
MUTE = "the estimate is of the thinker; a run that loads the talker holds its weights, too"


def thinker_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the part that understands, of a model that speaks; others as they are.

    Raises:
        ArchitectureError: it is missing.
    """
    kind = THINKERS.get(str(config.get("model_type")))
    if kind is None:
        return config
    inner = config.get("thinker_config")
    if not isinstance(inner, Mapping):
        raise ArchitectureError(
            f"{config['model_type']}: thinker_config is missing: the dimensions are in it",
            f"state it, or write its keys next to model_type: {kind}",
            "thinker_config",
        )
    return {**inner, "model_type": kind}


def language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration itself, or the text part of a multimodal one whose other parts are switched off."""
    inner_type = WRAPPERS.get(str(config.get("model_type")))
    if inner_type is None:
        return config
    outer_type = str(config["model_type"])
    if "vision_config" not in config or config["vision_config"] is not None:
        hears = outer_type in HEARING
        raise ArchitectureError(
            f"{outer_type}: memcheck has no model of its {'audio' if hears else 'vision'} tower here",
            "for the language model alone write `model: {name: NAME, part: language}`"
            + ("" if hears else ", or vision_config: null"),
            HEARING.get(outer_type, "vision_config"),
        )
    from memcheck.models.multimodal import text_of

    return text_of(config)[0]
