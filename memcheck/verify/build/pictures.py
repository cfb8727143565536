"""Inputs of a model of pictures, without labels: token ids, and what its image processor makes of pictures."""

from __future__ import annotations

from typing import Any

import torch

from memcheck.job.images import Pictures, pictures_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.models.vision import Vision
from memcheck.record import Record
from memcheck.verify.build.dtypes import DTYPES
from memcheck.verify.errors import RefusedStepError

Inputs = dict[str, torch.Tensor]
WORD, SEPARATOR = 7, 5
"""Ids of text, and of the tokens around pictures: any that a vocabulary has."""


class Brief(Record):
    """The pictures of a micro-batch, before anything is made of them."""

    job: TrainingJob
    vision: Vision
    config: Any
    """transformers' own, of the whole model."""
    batch: int
    pictures: Pictures
    sizes: tuple[int, ...]
    """Rows of each picture or tile."""
    tokens: tuple[int, ...]
    """Image tokens of each."""

    @property
    def dtype(self) -> torch.dtype:
        """What ``pixel_values`` come in: fp32, as processors make them, unless the model casts none."""
        return torch.float32 if self.vision.cast else DTYPES[self.job.recipe.params]

    def pixels(self, *shape: int) -> torch.Tensor:
        """Pixel values of that shape."""
        return torch.rand(shape, dtype=self.dtype)

    def refuse(self, why: str) -> RefusedStepError:
        """The step cannot be run, with that reason."""
        return RefusedStepError(
            f"no pictures can be made for {self.config.model_type}: {why}",
            "verify with other `training.images`, or --set training.images.per_sample=0",
        )


def sees(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether steps have pictures."""
    return architecture.vision is not None and bool(pictures_of(job, architecture.vision).rows)


def picture_batch(job: TrainingJob, vision: Vision, config: Any) -> tuple[Inputs, torch.Tensor]:
    """Inputs of one micro-batch, and its labels.

    Raises:
        RefusedStepError: what this model's processor makes is not known, or not of such pictures.
    """
    from memcheck.verify.build.picture_forms import FORMS

    form = FORMS.get(config.model_type)
    found = pictures_of(job, vision)
    count = max(1, found.pictures)
    sizes = found.sizes or _shared(found.rows, count, vision)
    seen = Brief(
        job=job,
        vision=vision,
        config=config,
        batch=job.rows,
        pictures=found,
        sizes=sizes,
        tokens=_tokens(found, sizes),
    )
    if form is None:
        raise seen.refuse("verify does not know what its processor makes of them")
    brought = form(seen)
    rows = [_row(seen, number) for number in range(job.rows)]
    ids = torch.tensor(rows)
    return {"input_ids": ids, **_kinds(seen, rows), **brought}, ids


def _shared(rows: int, count: int, vision: Vision) -> tuple[int, ...]:
    """Rows of each picture, in the numbers that become image tokens."""
    unit = vision.merge if rows % vision.merge == 0 else 1
    each, more = divmod(rows // unit, count)
    return tuple(unit * (each + (i < more)) for i in range(count))


def _tokens(found: Pictures, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Image tokens by picture: in proportion to their rows."""
    ends = [found.tokens * sum(sizes[: i + 1]) // max(1, sum(sizes)) for i in range(len(sizes))]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def image_token(config: Any) -> int:
    """The id that stands in a sequence for what a picture becomes."""
    names = ("image_token_id", "image_token_index", "image_patch_id")
    return int(next(value for name in names if (value := getattr(config, name, None)) is not None))


def _row(seen: Brief, number: int) -> list[int]:
    """One sample: each picture's tokens with one of text in front, and text to the end."""
    each = len(seen.tokens) // seen.batch
    mine = seen.tokens[number * each : (number + 1) * each]
    words = seen.job.sequence_length - sum(mine)
    row: list[int] = []
    for tokens in mine:
        row += [SEPARATOR] * (words > 0) + [image_token(seen.config)] * tokens
        words -= 1
    return (row + [WORD] * words)[: seen.job.sequence_length]


TOLD = {"gemma3": "token_type_ids", "shieldgemma2": "token_type_ids", "paligemma": "token_type_ids"}
"""Inputs that say of each token what it is; of most classes it is ``mm_token_type_ids``."""


def _kinds(seen: Brief, rows: list[list[int]]) -> Inputs:
    """What each token is: 1 for those of a picture; PaliGemma's are 1 for the answer, which pictures are no part of."""
    from inspect import signature

    import transformers

    kind = seen.config.model_type
    token = image_token(seen.config)
    name = TOLD.get(kind, "mm_token_type_ids")
    built = transformers.models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind]
    if name not in signature(getattr(transformers, built).forward).parameters:
        return {}
    pictured = [[int(each == token) for each in row] for row in rows]
    if kind == "paligemma":
        pictured = [[1 - each for each in row] for row in pictured]
    return {name: torch.tensor(pictured)}
