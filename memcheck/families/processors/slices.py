"""MiniCPM-V's processor: every picture as a whole, and the slices of large ones, each of a shape of its own.

transformers 5.23 models/minicpmv4_6/image_processing_minicpmv4_6.py and processing_minicpmv4_6.py.
"""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, Seen, no_clips, no_limits
from memcheck.models.vision import Vision

RESOLUTION, SLICES = 448, 9
"""Pixels to whose square a slice is scaled, and the most slices of a picture."""
WHY = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"
NUMBER = 3
"""Tokens in front of a picture that say its number."""


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Patches and image tokens of the picture as a whole and of its slices."""
    no_clips(frames)
    no_limits(limits)
    factor = vision.patch * math.isqrt(vision.merge)
    grid = _grid(height, width)
    whole = _patches(vision, _resized(height, width, factor, grows=grid == (1, 1)))
    sizes: tuple[int, ...] = (whole,)
    if grid != (1, 1):
        rows, columns = grid
        refined = _near(height, rows) / rows, _near(width, columns) / columns
        sizes += rows * columns * (_patches(vision, _resized(*refined, factor, grows=True)),)
    patches = sum(sizes)
    return Seen(
        pictures=len(sizes),
        patches=patches,
        tokens=patches // vision.merge,
        separators=NUMBER + 2 * len(sizes) + grid[0] - 1,
        defaults=(("max_slices", SLICES, WHY),),
        sizes=sizes,
    )


def _patches(vision: Vision, sides: tuple[int, int]) -> int:
    return (sides[0] // vision.patch) * (sides[1] // vision.patch)


def _near(length: float, divisor: int) -> int:
    return max(round(length / divisor) * divisor, divisor)


def _resized(height: float, width: float, factor: int, *, grows: bool) -> tuple[int, int]:
    """``find_best_resize``."""
    if grows or height * width > RESOLUTION * RESOLUTION:
        ratio = width / height
        height = int(RESOLUTION / math.sqrt(ratio))
        width = int(height * ratio)
    return _near(height, factor), _near(width, factor)


def _grid(height: int, width: int) -> tuple[int, int]:
    """Rows and columns of slices (``get_sliced_grid``): as many as the area has, most like its shape."""
    many = min(math.ceil(width * height / (RESOLUTION * RESOLUTION)), SLICES)
    best, apart = (1, 1), math.inf
    if many <= 1:
        return best
    for count in (many - 1, many, many + 1):
        if count == 1 or count > SLICES:
            continue
        for rows in (n for n in range(1, count + 1) if count % n == 0):
            off = abs(math.log(width / height) - math.log(count // rows / rows))
            if off < apart or (off == apart and rows > best[0]):
                best, apart = (rows, count // rows), off
    return best
