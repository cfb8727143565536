"""Pixtral's processor: the longest side is limited, both become multiples of what is one image token.

transformers 5.23 models/pixtral/image_processing_pixtral.py (``get_resize_output_image_size``).
"""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, Seen, no_clips, no_limits
from memcheck.models.vision import Vision


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """One picture, and a break after each row of image tokens."""
    no_clips(frames)
    no_limits(limits)
    why = "vision_config.image_size, the longest side that the released checkpoint's processor leaves"
    return resized(vision, height, width, vision.side)._replace(defaults=(("longest_edge", vision.side, why),))


def resized(vision: Vision, height: int, width: int, longest: int) -> Seen:
    """The picture under a limit of its longest side."""
    factor = vision.patch * math.isqrt(vision.merge)
    ratio = max(height, width) / longest
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    rows, columns = (height - 1) // factor + 1, (width - 1) // factor + 1
    tokens = rows * columns
    return Seen(pictures=1, patches=tokens * vision.merge, tokens=tokens, separators=rows)
