"""Gemma 4's processor: every picture is scaled to a budget of image tokens, and padded to it.

transformers 5.23 models/gemma4/image_processing_gemma4.py (``get_aspect_ratio_preserving_size``).
"""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, PictureError, Seen, no_limits
from memcheck.models.vision import Vision

FRAME_TOKENS = 70
"""Image tokens to which each frame of a clip is scaled and padded (video_processing_gemma4.py)."""


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Rows of the whole budget, and the image tokens of the patches that are real.

    Raises:
        PictureError: both sides become nothing, or the picture has more patches than the budget.
    """
    no_limits(limits)
    budget = vision.tile_tokens if frames is None else FRAME_TOKENS
    each, count = budget * vision.merge, frames or 1
    rows, columns = scaled(height, width, each, vision.patch, math.isqrt(vision.merge))
    why = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"
    return Seen(
        pictures=count,
        patches=count * each,
        tokens=count * rows * columns // vision.merge,
        separators=count * vision.separators,
        defaults=(("max_soft_tokens", budget, why),),
    )


def see_merged(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Gemma 4 without towers: patches are merged as pixels, so that a row is an image token.

    transformers 5.23 models/gemma4_unified/image_processing_gemma4_unified.py.
    """
    pooled = math.isqrt(vision.channels // 3) // vision.patch
    several = pooled * pooled
    found = see(vision._replace(merge=several), height, width, frames, limits)
    return found._replace(patches=found.patches // several)


def scaled(height: int, width: int, most: int, patch: int, pooled: int) -> tuple[int, int]:
    """Patches in each direction: the largest that fit, in multiples of what is pooled."""
    unit = pooled * patch
    factor = math.sqrt(most * patch * patch / (height * width))
    tall, wide = int(factor * height // unit), int(factor * width // unit)
    longest = most // (pooled * pooled)
    if not tall and not wide:
        raise PictureError(f"a picture of {width} x {height} pixels is refused by the processor")
    if not tall:
        tall, wide = 1, min(width // height, longest)
    elif not wide:
        wide, tall = 1, min(height // width, longest)
    if tall * wide * pooled * pooled > most:
        raise PictureError(f"a picture of {width} x {height} pixels has more patches than the processor's budget")
    return tall * pooled, wide * pooled
