"""LFM2-VL's processor: small pictures keep their shape, large ones become tiles and an overview; all are padded.

transformers 5.23 models/lfm2_vl/image_processing_lfm2_vl.py and processing_lfm2_vl.py.
"""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, Seen, no_clips, no_limits
from memcheck.families.processors.qwen import resize
from memcheck.models.vision import Vision

LEAST_TOKENS, TOLERANCE, TILES, SIDE = 64, 2.0, (2, 10), 512
WHY = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Rows of every tile, padded, and image tokens of the patches that are real."""
    no_clips(frames)
    no_limits(limits)
    factor = vision.patch * math.isqrt(vision.merge)
    most = vision.tile_tokens * factor * factor
    sides = resize(height, width, factor, (LEAST_TOKENS * factor * factor, most))
    overview = (sides[0] // factor) * (sides[1] // factor)
    rounded = [max(vision.patch, round(side / factor) * factor) for side in (height, width)]
    defaults = (("max_tiles", TILES[1], WHY),)
    if rounded[0] * rounded[1] <= most * TOLERANCE:
        return Seen(pictures=1, patches=vision.tile, tokens=overview, separators=2, defaults=defaults)
    tiles = _tiles(height, width)
    tokens = tiles * (SIDE // factor) ** 2 + overview
    return Seen(
        pictures=tiles + 1,
        patches=(tiles + 1) * vision.tile,
        tokens=tokens,
        separators=3 + tiles,
        defaults=defaults,
    )


def _tiles(height: int, width: int) -> int:
    """Tiles of the grid whose sides are most like the picture's (``find_closest_aspect_ratio``)."""
    least, most = TILES
    sides = range(1, most + 1)
    grids = sorted(((c, r) for c in sides for r in sides if least <= c * r <= most), key=lambda grid: grid[0] * grid[1])
    best, apart = (1, 1), math.inf
    for columns, rows in grids:
        off = abs(width / height - columns / rows)
        if off < apart:
            best, apart = (columns, rows), off
        elif off == apart and width * height > 0.5 * SIDE * SIDE * columns * rows:
            best = (columns, rows)
    return best[0] * best[1]
