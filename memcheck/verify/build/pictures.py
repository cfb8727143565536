"""Inputs of a model of pictures, without labels: token ids, and what its image processor makes of pictures.

For each family: shapes, grids, sizes and masks of pictures with given numbers of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any

import torch

from memcheck.job.images import Pictures, pictures_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.models.vision import Vision
from memcheck.record import Record
from memcheck.verify.build.tensors import DTYPES
from memcheck.verify.compare import RefusedStepError

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
        return torch.float32 if self.vision.pixels_arrive_in_fp32 else DTYPES[self.job.recipe.params]

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
    return architecture.vision is not None and bool(pictures_of(job, architecture.vision).patches)


def picture_batch(job: TrainingJob, vision: Vision, config: Any) -> tuple[Inputs, torch.Tensor]:
    """Inputs of one micro-batch, and its labels.

    Raises:
        RefusedStepError: what this model's processor makes is not known, or not of such pictures.
    """
    form = FORMS.get(config.model_type)
    found = pictures_of(job, vision)
    count = max(1, found.pictures)
    sizes = found.patches_by_picture or _shared(found.patches, count, vision)
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
    unit = vision.patches_per_token if rows % vision.patches_per_token == 0 else 1
    each, more = divmod(rows // unit, count)
    return tuple(unit * (each + (i < more)) for i in range(count))


def _tokens(found: Pictures, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Image tokens by picture: in proportion to their rows."""
    ends = [found.image_tokens * sum(sizes[: i + 1]) // max(1, sum(sizes)) for i in range(len(sizes))]
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


Form = Callable[[Brief], Inputs]


def _grids(seen: Brief, side: int) -> list[tuple[int, int]]:
    """Rows and columns of patches of each picture, as square as may be, in multiples of ``side``."""
    return [next(_splits(seen, rows, side)) for rows in seen.sizes]


def _splits(seen: Brief, rows: int, side: int) -> Iterator[tuple[int, int]]:
    """Heights and widths whose product is ``rows``, the squarest first."""
    cells, left = divmod(rows, side * side)
    found = [height for height in range(isqrt(cells), 0, -1) if not left and cells % height == 0]
    if not found:
        raise seen.refuse(f"{rows} rows are no grid of {side} x {side} patches")
    for height in found:
        yield height * side, cells // height * side


def _tower(config: Any) -> Any:
    return getattr(config, "vision_config", config)


def packed(seen: Brief) -> Inputs:
    """Rows of all pictures one after the other, each a patch's numbers, with the grid of each picture."""
    return _rows(seen, _grids(seen, isqrt(seen.vision.patches_per_token)))


def _rows(seen: Brief, grids: list[tuple[int, int]]) -> Inputs:
    return {
        "pixel_values": seen.pixels(seen.pictures.patches, seen.vision.values_per_patch),
        "image_grid_thw": torch.tensor([(1, *grid) for grid in grids]),
    }


def packed_squares(seen: Brief) -> Inputs:
    """Inputs whose ``pixel_values`` are the patches of all pictures, ``[patches, 3, patch, patch]``."""
    patch = int(_tower(seen.config).patch_size)
    found = packed(seen)
    return {**found, "pixel_values": seen.pixels(seen.pictures.patches, 3, patch, patch)}


def _side(seen: Brief) -> int:
    """Pixels of the side of a tile that becomes the brief's rows, class tokens aside."""
    tower = _tower(seen.config)
    patch, side = (each if isinstance(each, int) else int(each[0]) for each in (tower.patch_size, tower.image_size))
    cells = isqrt(seen.sizes[0] - seen.vision.class_tokens_per_tile)
    return side if side // patch == cells else cells * patch


def tiles(seen: Brief) -> Inputs:
    """Squares of one size, tiles and pictures alike."""
    return {"pixel_values": seen.pixels(len(seen.sizes), 3, _side(seen), _side(seen))}


def tiles_or_sized(seen: Brief) -> Inputs:
    """CLIP's squares, or Pixtral's proportions, in one class (LLaVA)."""
    return sized(seen) if getattr(_tower(seen.config), "model_type", "") == "pixtral" else tiles(seen)


def image_tiles(seen: Brief) -> Inputs:
    """Squares, under another name than clips have (Video-LLaVA)."""
    return {"pixel_values_images": tiles(seen)["pixel_values"]}


def tiles_of_samples(seen: Brief) -> Inputs:
    """Squares of each sample, with a mask of their pixels (Idefics 3)."""
    side, each = _side(seen), len(seen.sizes) // seen.batch
    shape = (seen.batch, each)
    return {
        "pixel_values": seen.pixels(*shape, 3, side, side),
        "pixel_attention_mask": _padded(int(_tower(seen.config).patch_size), *shape, side, side),
    }


def _padded(patch: int, *shape: int) -> torch.Tensor:
    """A mask of pixels of pictures that are padded by a patch: of one size they have no mask of rows, else they do."""
    mask = torch.ones(shape, dtype=torch.int64)
    mask[..., -patch:] = 0
    return mask


def padded_of_samples(seen: Brief) -> Inputs:
    """Pictures of each sample in their own proportions, with a mask of their pixels (Idefics 2)."""
    height, width = next(_splits(seen, seen.sizes[0], 1))
    patch, each = int(_tower(seen.config).patch_size), len(seen.sizes) // seen.batch
    shape, pixels = (seen.batch, each), (height * patch, width * patch)
    return {
        "pixel_values": seen.pixels(*shape, 3, *pixels),
        "pixel_attention_mask": _padded(patch, *shape, *pixels),
    }


def masked_tiles(seen: Brief) -> Inputs:
    """Squares with a mask of their pixels (Aria)."""
    side = _side(seen)
    return {
        **tiles(seen),
        "pixel_mask": _padded(int(_tower(seen.config).patch_size), len(seen.sizes), side, side).bool(),
    }


def sized(seen: Brief) -> Inputs:
    """Pictures in their own proportions, padded to one size, and the size of each (Pixtral's)."""
    patch, side = int(_tower(seen.config).patch_size), isqrt(seen.vision.patches_per_token)
    grids = [(h * patch, w * patch) for h, w in _grids(seen, side)]
    most = [max(grid[i] for grid in grids) for i in (0, 1)]
    return {"pixel_values": seen.pixels(len(grids), 3, *most), "image_sizes": torch.tensor(grids)}


def newlined(seen: Brief) -> Inputs:
    """Tiles of each picture, one of all of it among them, and the size that decides what of them is kept (LLaVA-NeXT).

    Sizes are looked for: what of the grid of tiles is cut off depends on a picture's proportions, and how many pictures
    a sample has on both.
    """
    config, side, count = seen.config, _side(seen), _newlined_tokens(seen, _side(seen))
    every, tokens = len(seen.sizes) // seen.batch, sum(seen.tokens) // seen.batch
    for pictures in (n for n in range(1, every + 1) if every % n == 0):
        tiles_each = every // pictures
        becomes = {
            count(*size): size for size in _candidates(config, side) if _tiles_of(size, config, side) == tiles_each
        }
        sizes = _adding_up(tokens, pictures, becomes)
        if sizes:
            values = seen.pixels(pictures * seen.batch, tiles_each, 3, side, side)
            return {"pixel_values": values, "image_sizes": torch.tensor(sizes * seen.batch)}
    raise seen.refuse(f"no pictures have {every} tiles and {tokens} tokens")


def _adding_up(tokens: int, pictures: int, becomes: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Sizes of ``pictures`` pictures that become ``tokens`` tokens together, the most alike first."""
    if pictures == 1:
        return [becomes[tokens]] if tokens in becomes else []
    for one in sorted(becomes, key=lambda each: abs(each * pictures - tokens)):
        others = _adding_up(tokens - one, pictures - 1, becomes) if pictures < MANY or one * pictures == tokens else []
        if others:
            return [becomes[one], *others]
    return []


MANY = 4
"""Pictures of unequal sizes that are not looked for any more."""


def _tiles_of(size: tuple[int, int], config: Any, side: int) -> int:
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    return int(image_size_to_num_patches(size, config.image_grid_pinpoints, side))


def _candidates(config: Any, side: int) -> Iterator[tuple[int, int]]:
    """Sizes of pictures: those of the grids of tiles, and others of all proportions."""
    yield from (tuple(size) for size in config.image_grid_pinpoints)
    steps = range(side // 12, 4 * side, side // 12)
    yield from ((height, width) for height in steps for width in steps)


def _newlined_tokens(seen: Brief, side: int) -> Callable[[int, int], int]:
    """What a picture of some size becomes, by the processor's own arithmetic (processing_llava_next.py)."""
    import transformers

    kind = "LlavaOnevisionProcessor" if seen.config.model_type == "llava_onevision" else "LlavaNextProcessor"
    of: Any = getattr(transformers, kind)
    processor = of.__new__(of)
    processor.patch_size = int(_tower(seen.config).patch_size)
    processor.vision_feature_select_strategy = seen.config.vision_feature_select_strategy
    processor.num_additional_image_tokens = seen.vision.class_tokens_per_tile
    processor.num_image_tokens = (side // processor.patch_size) ** 2
    processor.vision_aspect_ratio = getattr(seen.config, "vision_aspect_ratio", "")

    class Grids:
        """All that is asked of the image processor."""

        image_grid_pinpoints = seen.config.image_grid_pinpoints

    processor.image_processor = Grids()

    def count(height: int, width: int) -> int:
        found = int(processor._get_number_of_features(height, width, side, side))  # noqa: SLF001
        return found - (
            seen.vision.class_tokens_per_tile if processor.vision_feature_select_strategy == "default" else 0
        )

    return count


def positioned(seen: Brief) -> Inputs:
    """Pictures padded to one number of rows, and the place of each, -1 for rows that are none (Gemma 4)."""
    count, rows = len(seen.sizes), seen.sizes[0]
    real = sum(seen.tokens) // count * seen.vision.patches_per_token
    side = isqrt(seen.vision.patches_per_token)
    height, width = next(_splits(seen, real, side))
    places = [[i % width, i // width] for i in range(height * width)]
    places += [[-1, -1]] * (rows - len(places))
    return {
        "pixel_values": seen.pixels(count, rows, seen.vision.values_per_patch),
        "image_position_ids": torch.tensor([places] * count),
    }


FORMS: dict[str, Form] = {
    "aria": masked_tiles,
    "aya_vision": tiles,
    "cohere2_vision": tiles,
    "cosmos3_omni": packed,
    "deepseek_vl": tiles,
    "gemma3": tiles,
    "gemma4": positioned,
    "gemma4_unified": positioned,
    "glm46v": packed,
    "glm4v": packed,
    "glm4v_moe": packed,
    "glm_ocr": packed,
    "glmga": packed,
    "got_ocr2": tiles,
    "idefics2": padded_of_samples,
    "idefics3": tiles_of_samples,
    "internvl": tiles,
    "kimi_k25": packed_squares,
    "lighton_ocr": sized,
    "llama4": tiles,
    "llava": tiles_or_sized,
    "llava_next": newlined,
    "llava_next_video": newlined,
    "llava_onevision": newlined,
    "minimax_m3_vl": packed,
    "mistral3": sized,
    "muse_glimmer": packed,
    "ovis2": tiles,
    "paddleocr_vl": packed_squares,
    "paligemma": tiles,
    "pp_chart2table": tiles,
    "qwen2_5_omni_thinker": packed,
    "qwen2_5_vl": packed,
    "qwen2_vl": packed,
    "qwen3_5": packed,
    "qwen3_5_moe": packed,
    "qwen3_omni_moe_thinker": packed,
    "qwen3_vl": packed,
    "qwen3_vl_moe": packed,
    "shieldgemma2": tiles,
    "smolvlm": tiles_of_samples,
    "video_llava": image_tiles,
}
"""By ``model_type``: what is not here takes inputs that nothing here makes."""
