"""Fuyu: a picture that is no larger than a screen is cut into patches line by line (image_processing_fuyu.py)."""

from __future__ import annotations

from memcheck.models.pictures import Limits, Seen, no_clips, no_limits
from memcheck.models.vision import Vision

SCREEN = (1080, 1920)
"""Height and width that pictures are scaled down to."""
WHY = "the processor's default; the model's own preprocessor_config.json may say another"


def see(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> Seen:
    """Patches of what is not padding; a line break after each line, and a token after all."""
    no_clips(frames)
    no_limits(limits)
    most, widest = SCREEN
    if height > most or width > widest:
        scale = min(most / height, widest / width)
        height, width = int(height * scale), int(width * scale)
    lines, columns = (
        min(-(-side // vision.patch), end // vision.patch) for side, end in ((height, most), (width, widest))
    )
    return Seen(
        pictures=1,
        patches=lines * columns,
        tokens=lines * columns,
        separators=lines + 1,
        defaults=(("size", f"{widest} x {most}", WHY),),
    )
