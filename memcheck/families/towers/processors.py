"""Image processors that several towers have: one square, grids of tiles, sides in multiples of a merged patch."""

from __future__ import annotations

import math

from memcheck.autograd.tensor import ceil_div
from memcheck.families.tower import Limits, PictureError, ProcessedPicture, no_clips, no_limits
from memcheck.models.vision import Vision


def process_square(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count one tile of ``vision.rows_per_tile`` patches for a picture of any size.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    why = "one square a picture: the processor's do_pan_and_scan adds crops"
    crops = (("crops", 1, why),) if vision.kind == "siglip:gemma3" else ()
    return ProcessedPicture(
        pictures=1,
        patches=vision.rows_per_tile,
        image_tokens=vision.tokens_per_tile,
        separator_tokens=vision.separator_tokens,
        defaults=crops,
    )


def pan_and_scan_crops(height: int, width: int, *, min_crop: int = 256, max_crops: int = 4, ratio: float = 1.2) -> int:
    """Count the crops of Gemma 3's pan-and-scan, the whole picture included (image_processing_gemma3.py).

    ``height``, ``width``: in pixels. ``min_crop``: shortest side of a crop in pixels. ``max_crops``: most crops.
    ``ratio``: aspect ratio from which a picture is cropped.
    """
    longer, shorter = max(height, width), min(height, width)
    if longer / shorter < ratio:
        return 1
    count = min(max_crops, max(2, min(longer // min_crop, int(longer / shorter + 0.5))))
    return 1 if min(ceil_div(longer, count), shorter) < min_crop else 1 + count


INTERNVL_TILES = 12
"""Most tiles of a picture in addition to the overview."""
DEFAULT_PROCESSOR = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"


def process_internvl(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count tiles of the grid with the closest aspect ratio, and a thumbnail. A frame of a clip is one tile.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_limits(limits)
    if frames is not None:
        return equal_tiles(vision, frames, 2 * frames)
    tiles = internvl_tiles(
        height,
        width,
        vision.patch_side * math.isqrt(vision.rows_per_tile - vision.class_tokens_per_tile),
        INTERNVL_TILES,
    )
    return equal_tiles(vision, tiles, 2)._replace(defaults=(("max_patches", INTERNVL_TILES, DEFAULT_PROCESSOR),))


def internvl_tiles(height: int, width: int, tile_side: int, max_tiles: int) -> int:
    """Count the tiles of a picture, with a thumbnail if there are several (``get_optimal_tiled_canvas``).

    ``height``, ``width``, ``tile_side``: in pixels.
    """
    columns, rows = closest_aspect_ratio_grid(height, width, tile_side, max_tiles)
    return columns * rows + (columns * rows > 1)


def closest_aspect_ratio_grid(height: int, width: int, tile_side: int, max_tiles: int) -> tuple[int, int]:
    """Return columns and rows of the grid of at most ``max_tiles`` tiles whose aspect ratio is closest to the
    picture's.

    Of equally close grids the larger one wins if the picture has more than half of its pixels. ``height``, ``width``,
    ``tile_side``: in pixels.
    """
    grids = []
    for columns in range(1, max_tiles + 1):
        grids += [(columns, rows) for rows in range(1, max_tiles // columns + 1)]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    best, smallest_difference = (1, 1), math.inf
    for columns, rows in grids:
        difference = abs(width / height - columns / rows)
        if difference < smallest_difference:
            best, smallest_difference = (columns, rows), difference
        elif difference == smallest_difference and width * height > 0.5 * tile_side * tile_side * columns * rows:
            best = (columns, rows)
    return best


def equal_tiles(vision: Vision, tiles: int, separators: int) -> ProcessedPicture:
    """Return the counts of ``tiles`` tiles, each with the tower's patches and image tokens of a tile.

    ``separators``: tokens around them.
    """
    return ProcessedPicture(
        pictures=tiles,
        patches=tiles * vision.rows_per_tile,
        image_tokens=tiles * vision.tokens_per_tile,
        separator_tokens=separators,
    )


IMAGE_2, IMAGE_3 = (56 * 56, 28 * 28 * 16384), (256 * 256, 4096 * 4096)
"""Qwen2-VL and Qwen2.5-VL: 3136 to 12845056 pixels; Qwen3-VL and Qwen3.5: 65536 to 16777216."""
IMAGE_PADDLE = (384 * 384, 1536 * 1536)
"""PaddleOCR-VL: 147456 to 2359296 pixels."""
IMAGE_GLM = (112 * 112, 28 * 28 * 15000)
"""GLM-4.1V: 12544 to 11760000 pixels."""
IMAGE_MINIMAX = (56 * 56, 28 * 28 * 576)
"""MiniMax M3 VL: 3136 to 451584 pixels."""
VIDEO_2, VIDEO_3 = (128 * 28 * 28, 768 * 28 * 28), (128 * 32 * 32, 768 * 32 * 32)
"""Limits for each frame; Qwen3-VL's: of all frames of a clip."""
MAX_ASPECT_RATIO = 200
"""Sides whose quotient is higher are refused."""
TEMPORAL_PATCH = 2
"""Frames that become one row of patches (``temporal_patch_size``)."""


PIXEL_LIMITED = tuple(f"processors:process_{name}" for name in ("2", "3", "glm", "paddle", "minimax"))
"""Names of the processors that scale a picture between a least and a greatest number of pixels, as Qwen's do."""


def process_2(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens for Qwen2-VL and Qwen2.5-VL.

    A clip's frames are scaled one by one, and an odd last one is repeated. ``height``, ``width``: of the picture or of
    a frame, in pixels. ``frames``: of a clip; None for a picture. ``limits``: on its pixels, as the plan states them.
    """
    pixel_limits = _pixel_limits(IMAGE_2 if frames is None else VIDEO_2, limits)
    sides = smart_resize(height, width, vision.patch_side * 2, pixel_limits)
    return _patch_counts(vision, sides, 1 if frames is None else ceil_div(frames, TEMPORAL_PATCH), pixel_limits, limits)


def process_3(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens for Qwen3-VL and Qwen3.5.

    A clip's limits are those of all its frames together; each pair of frames also has a timestamp. ``height``,
    ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture. ``limits``: on its
    pixels, as the plan states them.
    """
    pixel_limits = _pixel_limits(IMAGE_3 if frames is None else VIDEO_3, limits)
    if frames is None:
        return _patch_counts(
            vision, smart_resize(height, width, vision.patch_side * 2, pixel_limits), 1, pixel_limits, limits
        )
    if frames < TEMPORAL_PATCH:
        raise PictureError(f"a clip has at least {TEMPORAL_PATCH} frames", "write how many the processor keeps")
    sides = smart_resize(height, width, vision.patch_side * 2, pixel_limits, frames)
    return _patch_counts(vision, sides, ceil_div(frames, TEMPORAL_PATCH), pixel_limits, limits)


def process_glm(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens for GLM-4.1V and its successors.

    The limits are those of the two frames to which a picture is repeated (models/glm4v/image_processing_glm4v.py of
    transformers 5.23). ``height``, ``width``: in pixels. ``limits``: on pixels, as the plan states them.
    """
    no_clips(frames)
    pixel_limits = _pixel_limits(IMAGE_GLM, limits)
    return _patch_counts(
        vision,
        smart_resize(height, width, vision.patch_side * 2, pixel_limits, TEMPORAL_PATCH),
        1,
        pixel_limits,
        limits,
    )


def process_paddle(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens for PaddleOCR-VL (models/paddleocr_vl/image_processing_paddleocr_vl.py).

    ``height``, ``width``: in pixels. ``limits``: on pixels, as the plan states them.
    """
    no_clips(frames)
    pixel_limits, factor = _pixel_limits(IMAGE_PADDLE, limits), vision.patch_side * 2
    if height < factor:
        height, width = factor, round(width * factor / height)
    if width < factor:
        height, width = round(height * factor / width), factor
    return _patch_counts(vision, smart_resize(height, width, factor, pixel_limits), 1, pixel_limits, limits)


def process_minimax(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count patches and image tokens for MiniMax M3 VL (models/minimax_m3_vl/image_processing_minimax_m3_vl.py).

    ``height``, ``width``: in pixels. ``limits``: on pixels, as the plan states them.
    """
    no_clips(frames)
    pixel_limits = _pixel_limits(IMAGE_MINIMAX, limits)
    return _patch_counts(
        vision, smart_resize(height, width, vision.patch_side * 2, pixel_limits), 1, pixel_limits, limits
    )


def smart_resize(height: int, width: int, factor: int, limits: tuple[int, int], frames: int = 1) -> tuple[int, int]:
    """Return height and width in pixels after ``smart_resize``.

    They are multiples of ``factor``, with a product within ``limits``: least and most pixels, of all ``frames`` of a
    clip together. ``height``, ``width``: before, in pixels.

    Raises:
        PictureError: one side is more than 200 times the other.
    """
    if frames > 1:
        height, width = _at_least_factor(height, width, factor)
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise PictureError(
            f"a picture of {width} x {height} pixels: one side is more than {MAX_ASPECT_RATIO} times the other",
            "the model's processor refuses it",
        )
    min_pixels, max_pixels = limits
    padded_frames = frames if frames == 1 else round(frames / TEMPORAL_PATCH) * TEMPORAL_PATCH
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if padded_frames * rows * columns > max_pixels:
        shrink = math.sqrt(frames * height * width / max_pixels)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif padded_frames * rows * columns < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        rows, columns = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rows, columns


def _at_least_factor(height: int, width: int, factor: int) -> tuple[int, int]:
    """Return height and width in pixels, enlarged so that neither side is shorter than ``factor`` pixels."""
    if min(height, width) >= factor:
        return height, width
    scale = max(factor / height, factor / width)
    return int(height * scale), int(width * scale)


def _pixel_limits(released: tuple[int, int], stated: Limits) -> tuple[int, int]:
    """Return the least and most pixels of a picture: those that the plan states, else the released processor's."""
    min_pixels, max_pixels = stated
    return released[0] if min_pixels is None else min_pixels, released[1] if max_pixels is None else max_pixels


def _patch_counts(
    vision: Vision, sides: tuple[int, int], grids: int, limits: tuple[int, int], stated: Limits
) -> ProcessedPicture:
    """Count the patches and image tokens of a picture or clip of ``sides`` (height, width in pixels).

    ``grids``: pairs of frames, 1 for a picture. ``limits``: least and most pixels. Those that the plan does not state
    (``stated``) are listed as defaults.
    """
    patches = grids * (sides[0] // vision.patch_side) * (sides[1] // vision.patch_side)
    reason = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"
    limits_by_name = zip(("min_pixels", "max_pixels"), limits, stated, strict=True)
    defaults = tuple((name, value, reason) for name, value, stated_limit in limits_by_name if stated_limit is None)
    return ProcessedPicture(
        pictures=grids,
        patches=patches,
        image_tokens=patches // vision.patches_per_token,
        separator_tokens=2,
        defaults=defaults,
    )
