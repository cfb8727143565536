"""Recipes of pictures: how many there are is the data's to say, and which parts of the model they train is a switch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from memcheck.configs.draft import Draft
from memcheck.configs.trainer_parts import architecture_named, words
from memcheck.configs.types import ReadSetting
from memcheck.families.towers.processors import PIXEL_LIMITED
from memcheck.models.types import Architecture

IMAGES, FREEZE, PARTS = "training.images", "training.freeze", "training.lora.parts"
NUMBER = f"{IMAGES}.per_sample"
FILL = "fill"
"""``per_sample`` of as many pictures as a sequence holds."""
STATED = "--images"
FILLED = "estimated with as many pictures as fill the sequence, an upper bound; --images states what a sample has"
DATA_WORDS = frozenset(
    (
        *("mllm", "vlm", "vl", "vision", "visual", "multimodal", "mm", "image", "images", "img", "picture", "pictures"),
        *("video", "videos", "llava", "vqa", "docvqa", "chartqa", "textvqa", "ocr", "caption", "captions", "coco"),
        *("captioning", "laion", "sharegpt4v", "screenshot", "screenshots", "chart", "charts", "figure", "figures"),
    )
)
"""Words in the name of a data set, or of a script, for pictures or video."""
SOUND = "`{}`: the model hears, too, and sound has no memory model here"


def sees(draft: Draft) -> Architecture | None:
    """The model, if it is a known one with a vision tower."""
    found = architecture_named(draft)
    return found if found is not None and found.vision is not None else None


def pictures(draft: Draft, path: str, message: str, more: str = "", *, silent: bool = False) -> None:
    """A key that says that the job trains on pictures: as stated, else the most that a sequence can hold; or refused.

    ``silent``: its data have no sound, although the model may take some.
    Nothing is said of an unknown model, which the plan's own reader refuses by its name.
    """
    known, found = architecture_named(draft), sees(draft)
    if found is None and (known is not None or draft.value("model.name") is None):
        draft.refuse(path, message, "name a model whose tower is known (`memcheck list models`)", (IMAGES,))
    elif found is not None and found.others and not silent and not draft.config.images:
        help = f"if the job has none, say which pictures it has instead, or none of them: {STATED} 'per_sample: 0'"
        draft.refuse(path, SOUND.format(path), help, (IMAGES,))
    elif found is not None and not draft.config.images and NUMBER not in draft.settings:
        fill(draft, path, more)
    draft.config.see(path)


def fill(draft: Draft, said: str, more: str = "") -> None:
    """Assume as many images as fill a sequence, for a model with a vision tower that trains on images.

    ``said``: the key or the script that says that there are images; ``more``: text added to the note.
    """
    draft.assume(NUMBER, FILL, f"`{said}` says that there are pictures, and not how many")
    draft.note(said, FILLED + more)


def named_data(draft: Draft, names: Iterable[str]) -> str:
    """The first key whose data sets' names say that they hold pictures or video; empty where none does."""
    return next((name for name in names if any(_of_pictures(each) for each in words(draft, name))), "")


def _of_pictures(name: str) -> bool:
    return not DATA_WORDS.isdisjoint(re.findall(r"[a-z]+(?:4v)?", name.lower()[:1000]))


def shown(draft: Draft, names: Iterable[str], data: Iterable[str] = (), scripts: Iterable[str] = ()) -> None:
    """The first key of these that the config has says that the job trains on images or video.

    So may the names of its ``data`` sets and of its ``scripts``, of a model with a tower.
    """
    name = next((name for name in names if draft.config.has(name)), "")
    if not name and not draft.config.images and NUMBER not in draft.settings and sees(draft) is not None:
        said = next((name for name in scripts if _of_pictures(name)), "") or named_data(draft, data)
        if said:
            fill(draft, said)
    if name:
        message = f"`{name}`: the job trains on images or video, and the model has no vision tower that is known"
        pictures(draft, name, message)


def text_alone(draft: Draft, why: str) -> None:
    """Batches without pictures, which skip the towers of a model that has some, with a graph of its own or resting."""
    found = architecture_named(draft)
    if found is not None and (found.vision is not None or found.others):
        draft.assume(NUMBER, 0, why)


def resized(draft: Draft, path: str, sizes: dict[str, int]) -> None:
    """What the framework makes of every picture before the model's processor gets it. ``sizes``: by key of the plan."""
    if draft.config.images and "patches" not in draft.config.images:
        draft.config.images = {**draft.config.images, **sizes}
        for key, value in sizes.items():
            draft.set(f"{IMAGES}.{key}", value, path)
    draft.config.see(path)


def scaled(draft: Draft, path: str, pixels: int, *, up: bool = False) -> None:
    """Scale images with more pixels than these down, before the processor. ``up``: scale those with fewer up."""
    width, height = (draft.config.images.get(name) for name in ("width", "height"))
    if width is None or height is None or "frames" in draft.config.images:
        return
    if (width * height < pixels) if up else (width * height > pixels):
        factor = (pixels / (width * height)) ** 0.5
        sizes = {"width": max(1, int(width * factor)), "height": max(1, int(height * factor))}
        resized(draft, path, sizes)


def limited(draft: Draft, paths: dict[str, str]) -> None:
    """Least and most pixels that a config hands to the model's processor, where it has such limits.

    ``paths``: the config's key by ``min_pixels`` and ``max_pixels``.
    """
    seen = sees(draft)
    for key, path in paths.items():
        pixels = draft.whole(path, IMAGES)
        if pixels and seen is not None and seen.vision is not None and "width" in draft.config.images:
            if seen.vision.processor in PIXEL_LIMITED:
                resized(draft, path, {key: pixels})
            else:
                draft.note(path, "the limit is not one of the processor whose arithmetic is known here")


def stated(draft: Draft) -> None:
    """Take the images that the user stated, for a model with a vision tower whose config does not give their number."""
    if sees(draft) is None or NUMBER in draft.settings:
        return
    for key, value in draft.config.images.items():
        draft.settings.setdefault(f"{IMAGES}.{key}", ReadSetting(value, STATED))


def parts(draft: Draft, path: str, frozen: dict[str, bool], why: str) -> None:
    """What of a model with a tower is trained, or has adapters. ``frozen``: vision, projector and language."""
    seen = sees(draft)
    if seen is None:
        return
    found = [name for name, each in frozen.items() if each == (draft.value("training.method") == "full")]
    key = FREEZE if draft.value("training.method") == "full" else PARTS
    if key in draft.settings or not found or (key == PARTS and len(found) == len(frozen)):
        return
    if key == FREEZE and seen.others and "vision" in found:
        found.append("audio")  # both frameworks list it among the towers
    if draft.config.has(path):
        draft.set(key, found, path)
    else:
        draft.assume(key, found, why)
