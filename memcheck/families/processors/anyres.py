"""LLaVA-NeXT and LLaVA-OneVision: the grid of tiles that wastes least, image tokens without its padding.

transformers 5.23 image_processing_utils.py (``select_best_resolution``) and models/llava_next/processing_llava_next.py
(``_get_number_of_features``); grids of the released checkpoints' ``image_grid_pinpoints``.
"""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, Seen, no_clips, no_limits
from memcheck.models.vision import Vision

GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
"""Rows and columns of tiles."""
SQUARE, MOST_TILES, BEYOND = 6, 9, 1.1
"""LLaVA-OneVision's grids, the number of tiles whose patches are left (``anyres_max_9``), and the ratio above which
patches are dropped.
"""
WHY = "image_grid_pinpoints of the released checkpoint's processor"


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Tiles of a grid and an overview; a learned token ends each row of what is left of the grid."""
    no_clips(frames)
    no_limits(limits)
    edge = math.isqrt(vision.tile_tokens)
    rows, columns = _grid(height, width, vision.patch * edge)
    left = _unpadded(height, width, rows * edge, columns * edge)
    tiles = rows * columns + 1
    default = ("image_grid_pinpoints", [list(grid) for grid in GRIDS], WHY)
    return Seen(
        pictures=tiles,
        patches=tiles * vision.tile,
        tokens=vision.tile_tokens + left[0] * left[1] + left[0],
        defaults=(default,),
    )


def see_onevision(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Tiles of a grid of up to six by six and an overview; more than nine tiles' patches are made fewer
    (processing_llava_onevision.py, ``_get_number_of_features``). Each of several pictures of a sample is one tile.
    """
    no_clips(frames)
    no_limits(limits)
    edge = math.isqrt(vision.tile_tokens)
    grids = tuple((rows, columns) for rows in range(1, SQUARE + 1) for columns in range(1, SQUARE + 1))
    rows, columns = _grid(height, width, vision.side, grids)
    tiles = rows * columns + 1
    left = _unpadded(height, width, rows * edge, columns * edge)
    ratio = math.sqrt(left[0] * left[1] / (MOST_TILES * vision.tile_tokens))
    if ratio > BEYOND:
        left = int(left[0] // ratio), int(left[1] // ratio)
    return Seen(
        pictures=tiles,
        patches=tiles * vision.tile,
        tokens=vision.tile_tokens + left[0] * left[1] + left[0],
        defaults=(("image_grid_pinpoints", f"{SQUARE} x {SQUARE} tiles at most", WHY),),
        of_several=(1, vision.tile, vision.tile_tokens + 1),
    )


def _grid(height: int, width: int, side: int, grids: tuple[tuple[int, int], ...] = GRIDS) -> tuple[int, int]:
    best, most, least = grids[0], 0, math.inf
    for rows, columns in grids:
        scale = min(columns * side / width, rows * side / height)
        effective = min(int(width * scale) * int(height * scale), width * height)
        wasted = rows * columns * side * side - effective
        if effective > most or (effective == most and wasted < least):
            best, most, least = (rows, columns), effective, wasted
    return best


def _unpadded(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of patches without those of the padding on both sides."""
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        return rows - (rows - kept) // 2 * 2, columns
    kept = int(round(width * (rows / height), 7))
    return rows, columns - (columns - kept) // 2 * 2
