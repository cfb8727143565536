"""What the layers of a language model know of pictures: rows that they read by cross attention, tokens of a kind."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.job.images import pictures_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture

RESTING = ("mlp.vision_moe",)
"""Experts of the tokens of pictures, which get no gradient in steps of text alone."""


def beside_pictures(job: TrainingJob, a: Architecture, setting: Setting, *, modal: bool) -> Setting:
    """The setting of layers when a micro-batch has pictures. A picture's tokens have the modality of those around it,
    too.

    ``modal``: some layer has experts of the tokens of pictures.
    """
    vision = a.vision
    if vision is not None and vision.crosses:
        encoded = pictures_of(job, vision).pictures * vision.tile_tokens // job.rows
        return setting._replace(encoded=encoded, encoded_dtype=setting.autocast)
    if not modal:
        return setting
    found = pictures_of(job, vision) if vision is not None else None
    if vision is None or found is None or not found.tokens:
        return setting._replace(frozen=(*setting.frozen, *RESTING))
    return setting._replace(image_tokens=found.tokens + vision.separators * found.pictures)
