"""Patches and image tokens of a picture, held against what processors returned."""

from __future__ import annotations

import math
from typing import Any

import pytest

from memcheck.families.registry import TOWERS, read_architecture
from memcheck.families.tower import Limits, PictureError, ProcessedPicture, tokens_of
from memcheck.families.towers import pixtral, processors
from memcheck.families.towers.siglip import idefics3_grid
from memcheck.models.vision import CrossReading, Vision
from tests.models.multimodal import MODELS, facts

EMPTY = Vision(
    kind="",
    hidden=1,
    blocks=(),
    values_per_patch=1,
    patches_per_token=1,
    token_width=1,
    stem_tensors=(),
    projector_tensors=(),
    embedding_can_be_hooked=True,
    processor="none:process",
)
CLIP = EMPTY._replace(rows_per_tile=577, tokens_per_tile=576, class_tokens_per_tile=1, patch_side=14)
TILED = {
    "aria": EMPTY._replace(tokens_per_picture=256, largest_picture=4900, patch_side=14, processor="aria:process"),
    "gemma3": EMPTY._replace(
        kind="gemma3",
        rows_per_tile=4096,
        tokens_per_tile=256,
        separator_tokens=4,
        processor="processors:process_square",
    ),
    "shieldgemma2": EMPTY._replace(
        kind="gemma3",
        rows_per_tile=4096,
        tokens_per_tile=256,
        separator_tokens=4,
        processor="processors:process_square",
    ),
    "gemma4": EMPTY._replace(
        rows_per_tile=2520,
        tokens_per_tile=280,
        patches_per_token=9,
        patch_side=16,
        separator_tokens=2,
        processor="gemma4:process",
    ),
    "gemma4_unified": EMPTY._replace(
        rows_per_tile=280,
        tokens_per_tile=280,
        values_per_patch=6912,
        patch_side=16,
        separator_tokens=2,
        processor="gemma4:process_merged",
    ),
    "llava": CLIP._replace(processor="processors:process_square"),
    "llava_next": CLIP._replace(processor="llava:process"),
    "llava_onevision": EMPTY._replace(
        rows_per_tile=729, tokens_per_tile=729, patch_side=14, largest_picture=384, processor="llava:process_onevision"
    ),
    "got_ocr2": EMPTY._replace(
        rows_per_tile=4096,
        tokens_per_tile=256,
        patch_side=16,
        separator_tokens=2,
        processor="processors:process_square",
    ),
    "deepseek_vl": EMPTY._replace(
        rows_per_tile=576, tokens_per_tile=576, patch_side=16, processor="processors:process_square"
    ),
    "mllama": EMPTY._replace(
        rows_per_tile=1632,
        tokens_per_tile=1604,
        patch_side=14,
        cross_attention=CrossReading((1,), 4),
        processor="mllama:process",
    ),
    "lfm2_vl": EMPTY._replace(
        rows_per_tile=1024,
        tokens_per_tile=256,
        patches_per_token=4,
        patch_side=16,
        separator_tokens=2,
        processor="lfm2:process",
    ),
    "internvl": EMPTY._replace(
        rows_per_tile=1025,
        tokens_per_tile=256,
        class_tokens_per_tile=1,
        patch_side=14,
        processor="processors:process_internvl",
    ),
    "idefics3": EMPTY._replace(
        rows_per_tile=676, tokens_per_tile=169, patch_side=14, processor="siglip:process_idefics3"
    ),
    "smolvlm": EMPTY._replace(
        rows_per_tile=729, tokens_per_tile=81, patch_side=14, processor="siglip:process_idefics3"
    ),
    "mistral3": EMPTY._replace(patch_side=14, patches_per_token=4, largest_picture=1540, processor="pixtral:process"),
    "pixtral": EMPTY._replace(patch_side=16, largest_picture=1024, processor="pixtral:process"),
    "muse_glimmer": EMPTY._replace(patch_side=14, patches_per_token=4, processor="muse_glimmer:process"),
    "llama4": EMPTY._replace(
        rows_per_tile=577, tokens_per_tile=144, class_tokens_per_tile=1, patch_side=14, processor="llama4:process"
    ),
}
"""The tiles of released checkpoints."""
ROWS = facts("image_tokens")


def vision_of(model_type: str) -> Vision:
    """The tower of some model of that type."""
    kind = {"glm46v": "glm4v", "glmga": "glm4v"}.get(model_type, model_type)  # the same classes
    config = next(model.config for model in MODELS.values() if model.config["model_type"] == kind)
    found = read_architecture(config).vision
    assert found is not None
    return found


def limits_of(processor: dict[str, Any]) -> Limits:
    """The limits that a row's processor was made with."""
    size = processor.get("size") or {}
    return Limits(
        processor.get("min_pixels", size.get("shortest_edge")), processor.get("max_pixels", size.get("longest_edge"))
    )


def seen(row: dict[str, Any]) -> ProcessedPicture:
    """What the arithmetic says of a row."""
    kind, settings, clip = row["model_type"], row["processor"], row.get("video")
    height, width = (clip["height"], clip["width"]) if clip else row["image"]
    if kind.startswith(("qwen", "glm", "paddle", "video", "phi4", "molmo", "minimax", "minicpm", "cosmos3")):
        return tokens_of(vision_of(kind), height, width, clip and clip["frames"], limits_of(settings))
    if kind == "paligemma":
        tile = (settings["size"]["height"] // 14) ** 2
        return processors.process_square(
            EMPTY._replace(rows_per_tile=tile, tokens_per_tile=tile), height, width, None, Limits()
        )
    vision = TILED[kind]
    if "max_soft_tokens" in settings:
        most = settings["max_soft_tokens"]
        vision = vision._replace(rows_per_tile=most * vision.patches_per_token, tokens_per_tile=most)
    if settings.get("do_pan_and_scan"):
        count = processors.pan_and_scan_crops(height, width)
    elif kind == "internvl" and not clip:
        most = settings["max_patches"]
        count = processors.internvl_tiles(height, width, 448, most) if settings["crop_to_patches"] else 1
    elif settings.get("do_image_splitting") is False:
        count = 1
    elif kind in ("idefics3", "smolvlm"):
        sides = settings["max_image_size"]["longest_edge"], settings["size"]["longest_edge"]
        count = math.prod(idefics3_grid(height, width, *sides)) + 1
    elif kind in ("mistral3", "pixtral"):
        return pixtral.resized(vision, height, width, settings["size"]["longest_edge"])
    else:
        return tokens_of(vision, height, width, clip and clip["frames"], Limits())
    return ProcessedPicture(
        pictures=count, patches=count * vision.rows_per_tile, image_tokens=count * vision.tokens_per_tile
    )


def test_processors() -> None:
    """Patches and tokens are those that the processor's tensors have."""
    for row in [row for row in ROWS if row["model_type"] in TOWERS or row["model_type"] == "pixtral"]:
        found = seen(row)
        tokens = row.get("image_tokens", row.get("video_tokens"))
        assert (found.patches, found.image_tokens) == (
            row.get("padded_patches", row.get("patches", found.patches)),
            tokens,
        ), row


@pytest.mark.parametrize(
    ("height", "width", "count"), [(480, 640, 3), (100, 80, 1), (1080, 1920, 13), (512, 512, 1), (2000, 300, 5)]
)
def test_tiles_of_command_a_vision(height: int, width: int, count: int) -> None:
    """As many tiles as Cohere2VisionImageProcessor returned, the thumbnail of several included."""
    vision = EMPTY._replace(rows_per_tile=1024, tokens_per_tile=256, patch_side=16, processor="cohere:process_cohere2")
    found = tokens_of(vision, height, width, None, Limits())
    assert (found.pictures, found.image_tokens) == (count, 256 * count)


@pytest.mark.parametrize("kind", sorted(TILED))
def test_separators(kind: str) -> None:
    """With the released checkpoint's settings the tokens around and between a picture's are counted, too."""
    rows = [r for r in ROWS if r["model_type"] == kind and "image" in r]
    found = [tokens_of(TILED[kind], *r["image"], None, Limits()) for r in rows]
    plain = [r for r, f in zip(rows, found, strict=True) if f.patches == r.get("padded_patches", r["patches"])]
    assert plain
    for row in plain:
        one = tokens_of(TILED[kind], *row["image"], None, Limits())
        assert one.separator_tokens == row["separators"] or one.image_tokens != row["image_tokens"]


def test_several_pictures_of_a_sample_are_one_tile_each() -> None:
    """LLaVA-OneVision cuts a picture into tiles only where it is alone in its sample."""
    vision = TILED["llava_onevision"]
    alone = tokens_of(vision, 480, 640, None, Limits())
    assert alone.each_of_several == (1, 729, 730)
    assert alone.pictures == 5


def test_released_limits_are_assumptions() -> None:
    """A limit that the plan does not state is the released checkpoint's, and is written down."""
    found = tokens_of(vision_of("qwen2_5_vl"), 3000, 4000, None, Limits(most_pixels=1003520))
    assert [key for key, _, _ in found.defaults] == ["min_pixels"]


def test_a_narrow_picture_is_refused() -> None:
    """The processor refuses a picture whose one side is more than 200 times the other, and so does the plan."""
    with pytest.raises(PictureError, match="200 times"):
        tokens_of(vision_of("qwen2_5_vl"), 10, 2001, None, Limits())


def test_limits_that_a_processor_has_not() -> None:
    """A limit in pixels for a processor of tiles would be estimated as nothing: an error."""
    with pytest.raises(PictureError, match="no limit in pixels"):
        tokens_of(TILED["internvl"], 480, 640, None, Limits(most_pixels=1003520))


def test_clips_that_a_processor_has_not() -> None:
    """A clip for a processor of pictures is an error."""
    with pytest.raises(PictureError, match="video processor"):
        tokens_of(TILED["llava"], 480, 640, 8, Limits())


def test_an_unknown_processor_is_an_error() -> None:
    """Without the processor's arithmetic the plan has to state patches and tokens."""
    with pytest.raises(PictureError, match="image processor"):
        tokens_of(vision_of("qwen2_5_vl")._replace(processor=""), 480, 640, None, Limits())
