"""From the size of a picture to patches and image tokens, as the processor of each kind of model counts them."""

from __future__ import annotations

from memcheck.edge.imports import import_module
from memcheck.errors import MemcheckError
from memcheck.models.vision import Vision
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Limits(Record):
    """Least and most pixels that a picture is scaled to, where the plan states them."""

    least: int | None = None
    most: int | None = None


class PictureError(MemcheckError):
    """No processor takes such a picture, or takes such a setting."""


class ProcessedPicture(Record):
    """What a processor makes of one picture or clip."""

    pictures: int
    """Tiles, or pictures that the tower sees apart: a clip's pairs of frames."""
    patches: int
    """Rows of the tower, class tokens included."""
    tokens: int
    """Image tokens of the sequence."""
    separators: int = 0
    """Further tokens that the processor's text part puts around them."""
    defaults: tuple[tuple[str, object, str], ...] = ()
    """Settings of the checkpoint's processor that were taken: key, value, why."""
    of_several: tuple[int, int, int] | None = None
    """Pictures, patches and tokens of each of several pictures of a sample, where that is not what one alone has."""
    sizes: tuple[int, ...] = ()
    """Rows of each of what the tower sees apart, where these differ; none: they are alike."""


def tokens_of(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Compute the patches and image tokens that the released checkpoint's processor makes of a picture or a clip.

    ``height``, ``width``: in pixels. ``frames``: of a clip; None for a picture. ``limits``: on pixels, from the plan.
    """
    if not vision.processor:
        raise PictureError(
            "memcheck does not know this model's image processor",
            "write `patches` and `tokens` as the processor counts them",
        )
    module, function = vision.processor.split(":")
    process: Callable[[Vision, int, int, int | None, Limits], ProcessedPicture] = getattr(
        import_module("memcheck.families.towers." + module), function
    )
    return process(vision, height, width, frames, limits)


def no_limits(limits: Limits) -> None:
    """Check that the plan states no limits that this processor does not have.

    Raises:
        PictureError: the plan states such a limit.
    """
    if limits != Limits():
        raise PictureError(
            "this model's processor scales pictures to sizes of its own: it has no limit in pixels",
            "remove max_pixels and min_pixels, or write `patches` and `tokens`",
        )


def no_clips(frames: int | None) -> None:
    """Check that the plan states no frames if this processor takes none.

    Raises:
        PictureError: the plan states frames.
    """
    if frames is not None:
        raise PictureError(
            "memcheck has no arithmetic of this model's video processor",
            "write `patches` and `tokens` as the processor counts them",
        )
