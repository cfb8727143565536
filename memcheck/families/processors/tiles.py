"""Processors that cut a picture into tiles: InternVL, Command A Vision, Idefics 3 and SmolVLM, Llama 4.

transformers 5.23 models/got_ocr2/image_processing_got_ocr2.py, models/idefics3/image_processing_idefics3.py and
models/llama4/image_processing_llama4.py. Their limits are those of the released checkpoints' preprocessor_config.json.
"""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, Seen, no_clips, no_limits
from memcheck.models.vision import Vision

INTERNVL_TILES, COHERE2_TILES, LLAMA4_TILES, IDEFICS3_TILES, PERCEPTION_TILES = 12, 12, 16, 4, 36
"""Most tiles of a picture in addition to the overview; Idefics 3's are those of its longest side."""
LONGEST = 4096
"""``MAX_IMAGE_SIZE`` of Idefics 3."""
WHY = "the released checkpoint's processor; the model's own preprocessor_config.json may say another"


def see_internvl(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """The grid whose sides are most like the picture's, and a thumbnail; a clip's frames are one tile each."""
    no_limits(limits)
    if frames is not None:
        return _seen(vision, frames, 2 * frames)
    tiles = internvl_tiles(height, width, vision.patch * math.isqrt(vision.tile - vision.classes), INTERNVL_TILES)
    return _seen(vision, tiles, 2)._replace(defaults=(("max_patches", INTERNVL_TILES, WHY),))


def internvl_tiles(height: int, width: int, side: int, most: int) -> int:
    """Tiles of a picture, the thumbnail of several included (``get_optimal_tiled_canvas``)."""
    columns, rows = closest_grid(height, width, side, most)
    return columns * rows + (columns * rows > 1)


def closest_grid(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Columns and rows of at most ``most`` tiles, whose sides are most like the picture's."""
    grids = [(c, r) for c in range(1, most + 1) for r in range(1, most + 1) if c * r <= most]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    best, least = (1, 1), math.inf
    for columns, rows in grids:
        apart = abs(width / height - columns / rows)
        if apart < least:
            best, least = (columns, rows), apart
        elif apart == least and width * height > 0.5 * side * side * columns * rows:
            best = (columns, rows)
    return best


def see_cohere2(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Command A Vision: the grid that enlarges least, and a thumbnail; a line break after each tile.

    transformers 5.23 models/cohere2_vision/image_processing_cohere2_vision.py (``get_optimal_tiled_canvas``).
    """
    no_clips(frames)
    no_limits(limits)
    side = vision.patch * math.isqrt(vision.tile)
    grids = [(c, r) for c in range(1, COHERE2_TILES + 1) for r in range(1, COHERE2_TILES + 1) if c * r <= COHERE2_TILES]
    grids.sort(key=lambda grid: grid[0] * grid[1])
    scales = [min(c * side / width, r * side / height) for c, r in grids]
    larger = [s for s in scales if s >= 1]
    columns, rows = grids[scales.index(min(larger) if larger else max(scales))]
    tiles = rows * columns + (rows * columns > 1)
    return _seen(vision, tiles, 2 + tiles)._replace(defaults=(("max_patches", COHERE2_TILES, WHY),))


def see_idefics3(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """The longest side is scaled to four tiles, the other rounded up to whole ones; an overview comes with them."""
    no_clips(frames)
    no_limits(limits)
    side = vision.patch * math.isqrt(vision.tile)
    rows, columns = idefics3_grid(height, width, side, IDEFICS3_TILES * side)
    separators = rows * columns * 2 + rows + 4
    default = ("longest_edge", IDEFICS3_TILES * side, WHY)
    return _seen(vision, rows * columns + 1, separators)._replace(defaults=(default,))


def idefics3_grid(height: int, width: int, side: int, longest: int) -> tuple[int, int]:
    """Rows and columns of tiles of ``side`` pixels, where the longest side is scaled to ``longest``."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    if max(height, width) > LONGEST:
        shrink = LONGEST / max(height, width)
        height, width = max(1, int(height * shrink)), max(1, int(width * shrink))
    ratio = width / height
    if width >= height:
        width = -(-width // side) * side
        height = -(-int(width / ratio) // side) * side
    else:
        height = -(-height // side) * side
        width = -(-int(height * ratio) // side) * side
    return height // side, width // side


def see_llama4(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """The canvas of at most sixteen tiles that enlarges least, and an overview if it has several."""
    no_clips(frames)
    no_limits(limits)
    side = vision.patch * math.isqrt(vision.tile - vision.classes)
    rows, columns = llama4_canvas(height, width, side, LLAMA4_TILES)
    tiles = rows * columns
    several = tiles > 1
    found = _seen(vision, tiles + several, 3 + tiles * several)
    return found._replace(defaults=(("max_patches", LLAMA4_TILES, WHY),))


def llama4_canvas(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Rows and columns (``get_best_fit`` without ``resize_to_max_canvas``): the smallest enlargement, else the mildest
    reduction; of equal ones the smallest canvas.
    """
    grids = [(r, n // r) for n in range(most, 0, -1) for r in range(1, n + 1) if n % r == 0]
    scales = [(min(r * side / height, c * side / width), r, c) for r, c in grids]
    larger = [s for s, _, _ in scales if s >= 1]
    chosen = min(larger) if larger else max(s for s, _, _ in scales)
    return min(((r, c) for s, r, c in scales if s == chosen), key=lambda grid: grid[0] * grid[1])


def _seen(vision: Vision, tiles: int, separators: int) -> Seen:
    return Seen(pictures=tiles, patches=tiles * vision.tile, tokens=tiles * vision.tile_tokens, separators=separators)
