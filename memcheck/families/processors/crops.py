"""Molmo 2: squares that overlap on a canvas of a picture's shape, and the whole in one (image_processing_molmo2.py)."""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, Seen, no_clips, no_limits
from memcheck.models.vision import Vision

MOST, MARGINS = 8, 8
"""Squares of a picture at most, and patches of each side that its neighbours have, too."""
WHY = "the processor's default; the model's own preprocessor_config.json may say another"


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Rows of every square; image tokens are four patches each of the whole picture and of the canvas."""
    no_clips(frames)
    no_limits(limits)
    across = math.isqrt(vision.tile)
    window, margin = (across - MARGINS) * vision.patch, MARGINS * vision.patch
    rows, columns = _tiling(height - margin, width - margin, window)
    down, along = (-(-(n * (across - MARGINS) + MARGINS) // 2) for n in (rows, columns))
    squares = rows * columns + 1
    tokens = vision.tile_tokens + down * along
    return Seen(
        pictures=squares,
        patches=squares * vision.tile,
        tokens=tokens,
        separators=vision.separators,
        defaults=(("max_tiles", MOST, WHY),),
    )


def _tiling(height: int, width: int, side: int) -> tuple[int, int]:
    """Rows and columns that enlarge least, or reduce least (``select_tiling``)."""
    grids = [(r, c) for r in range(1, MOST + 1) for c in range(1, MOST + 1) if r * c <= MOST]
    grids.sort(key=lambda grid: (grid[0] * grid[1], grid[0]))
    scales = [min(_scale(r * side, height), _scale(c * side, width)) for r, c in grids]
    larger = [s for s in scales if s >= 1]
    return grids[scales.index(min(larger) if larger else max(scales))]


def _scale(size: int, original: int) -> float:
    return size / original if original else math.inf
