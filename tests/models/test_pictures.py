"""Patches and image tokens of a picture, held against what processors returned."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.models.pictures import Limits, PictureError, tokens_of
from memcheck.models.registry import TOWERS, read_architecture
from memcheck.models.vision import Vision
from tests.models.multimodal import MODELS, facts

KEYS = ("max_pixels", "min_pixels")


def vision_of(model_type: str) -> Vision:
    """The tower of some model of that type."""
    config = next(model.config for model in MODELS.values() if model.config["model_type"] == model_type)
    found = read_architecture(config).vision
    assert found is not None
    return found


def limits_of(processor: dict[str, Any]) -> Limits:
    """The limits that a row's processor was made with."""
    size = processor.get("size") or {}
    return Limits(
        processor.get("min_pixels", size.get("shortest_edge")), processor.get("max_pixels", size.get("longest_edge"))
    )


QWEN = [
    row
    for row in facts("image_tokens")
    if row["model_type"] in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl") and row["model_type"] in TOWERS
]


@pytest.mark.parametrize("row", QWEN, ids=lambda row: f"{row['model_type']}-{row.get('image') or row.get('video')}")
def test_qwen(row: dict[str, Any]) -> None:
    """Qwen's processors scale both sides to multiples of a factor within limits; clips lose no frame."""
    vision, limits = vision_of(row["model_type"]), limits_of(row["processor"])
    clip = row.get("video")
    height, width = (clip["height"], clip["width"]) if clip else row["image"]
    if "refused" in row:
        with pytest.raises(PictureError):
            tokens_of(vision, height, width, clip and clip["frames"], limits)
        return
    found = tokens_of(vision, height, width, clip and clip["frames"], limits)
    assert (found.patches, found.tokens) == (row["patches"], row.get("image_tokens", row.get("video_tokens")))


def test_released_limits_are_assumptions() -> None:
    """A limit that the plan does not state is the released checkpoint's, and is written down."""
    found = tokens_of(vision_of("qwen2_5_vl"), 3000, 4000, None, Limits(most=1003520))
    assert [key for key, _, _ in found.defaults] == ["min_pixels"]


def test_a_narrow_picture_is_refused() -> None:
    """The processor refuses a picture whose one side is more than 200 times the other, and so does the plan."""
    with pytest.raises(PictureError, match="200 times"):
        tokens_of(vision_of("qwen2_5_vl"), 10, 2001, None, Limits())


def test_an_unknown_processor_is_an_error() -> None:
    """Without the processor's arithmetic the plan has to state patches and tokens."""
    with pytest.raises(PictureError, match="image processor"):
        tokens_of(vision_of("qwen2_5_vl")._replace(processor=""), 480, 640, None, Limits())
