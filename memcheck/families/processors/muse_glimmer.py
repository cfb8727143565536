"""Muse Glimmer's processor: the grid of image tokens nearest to a picture's shape, and no more of them than a limit.

image_processing_muse_glimmer.py of transformers 5.23 (``smart_resize``).
"""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, Seen, no_clips, no_limits
from memcheck.models.vision import Vision

MOST = 4096
WHY = "the processor's default; the model's own preprocessor_config.json may say another"


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Patches of the grid, a start and an end around its tokens."""
    no_clips(frames)
    no_limits(limits)
    rows, columns = grid(height, width, vision.patch * math.isqrt(vision.merge))
    return Seen(
        pictures=1,
        patches=rows * columns * vision.merge,
        tokens=rows * columns,
        separators=2,
        defaults=(("max_image_tokens", MOST, WHY),),
    )


def grid(height: int, width: int, side: int) -> tuple[int, int]:
    """Rows and columns of squares of ``side`` pixels: each rounded either way, whichever is nearest in shape."""
    high, wide = height / side, width / side
    ratio = wide / high
    if high * wide > MOST:
        high = (MOST / ratio) ** 0.5
        wide = high * ratio
    # a set, as there: which of two that are equally near is taken is its order
    rounded = {(r, c) for r in (math.floor(high), math.ceil(high)) for c in (math.floor(wide), math.ceil(wide))}
    fitting = [(r, c) for r, c in rounded if r >= 1 and c >= 1 and r * c <= MOST]
    if not fitting:
        fitting = [(max(1, round(high)), max(1, round(wide)))]
    return min(fitting, key=lambda each: abs(each[0] / each[1] - height / width))
