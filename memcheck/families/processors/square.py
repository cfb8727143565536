"""Processors that make one square of every picture: Gemma 3 without pan-and-scan, PaliGemma, LLaVA 1.5, Aria."""

from __future__ import annotations

import math

from memcheck.families.pictures import Limits, Seen, no_clips, no_limits
from memcheck.models.vision import Vision


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """One tile, whatever the size."""
    no_clips(frames)
    no_limits(limits)
    why = "one square a picture: the processor's do_pan_and_scan adds crops"
    crops = (("crops", 1, why),) if vision.kind == "gemma3" else ()
    return Seen(
        pictures=1, patches=vision.tile, tokens=vision.tile_tokens, separators=vision.separators, defaults=crops
    )


def crops(height: int, width: int, *, least: int = 256, most: int = 4, ratio: float = 1.2) -> int:
    """Tiles of Gemma 3's pan-and-scan, the whole picture included (image_processing_gemma3.py)."""
    longer, shorter = max(height, width), min(height, width)
    if longer / shorter < ratio:
        return 1
    count = min(most, max(2, min(longer // least, int(longer / shorter + 0.5))))
    return 1 if min(-(-longer // count), shorter) < least else 1 + count


def see_padded(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Llama 3.2 Vision: as many tiles of every picture, of which those that it does not fill are masked, and one token
    in the text (image_processing_mllama.py).
    """
    no_clips(frames)
    no_limits(limits)
    return Seen(pictures=1, patches=vision.tile, tokens=1)


def see_resampled(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Aria: a square that every picture is padded to (image_processing_aria.py)."""
    no_clips(frames)
    no_limits(limits)
    why = "the processor's default: split_image adds crops, and max_image_size 490 makes a quarter of the rows"
    defaults = (("max_image_size", math.isqrt(vision.side) * vision.patch, why),)
    return Seen(pictures=1, patches=vision.side, tokens=vision.resampled, defaults=defaults)
