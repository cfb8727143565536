"""Phi-4-multimodal: squares that cover a picture in its own size, and the whole in one (``dynamic_hd``).

image_processing_phi4_multimodal.py of transformers 5.23.
"""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, PictureError, Seen, no_clips, no_limits
from memcheck.families.processors.tiles import closest_grid
from memcheck.models.vision import Vision

MOST = 36
WHY = "the processor's default; the model's own preprocessor_config.json may say another"
NARROWEST = 10
"""Pixels that a side has at least when the picture is scaled."""


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Rows of every square, and image tokens of what a picture fills of them, a token after each row of these."""
    no_clips(frames)
    no_limits(limits)
    across = math.isqrt(vision.tile)
    side = across * vision.patch
    columns, rows = math.ceil(width / side), math.ceil(height / side)
    if columns * rows > MOST:
        columns, rows = closest_grid(height, width, side, MOST)
    wide, high = side * columns / width, side * rows / height
    inner = (side * columns, int(height * wide)) if wide < high else (int(width * high), side * rows)
    if min(*inner, side) < NARROWEST:
        raise PictureError(f"the processor refuses a picture of {width} by {height}: it is too narrow")
    down = _filled(side * rows - inner[1], across * rows, vision)
    along = _filled(side * columns - inner[0], across * columns, vision)
    each = across // 2
    tokens = down * (along + 1) + 1 + each * (each + 1)
    squares = columns * rows + 1
    return Seen(pictures=squares, patches=squares * vision.tile, tokens=tokens, defaults=(("max_tiles", MOST, WHY),))


def _filled(padding: int, patches: int, vision: Vision) -> int:
    """Image tokens along a side: every second patch that is not all padding."""
    return -(-(patches - padding // vision.patch) // 2)
