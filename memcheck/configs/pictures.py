"""Recipes of pictures: how many there are is the data's to say, and which parts of the model they train is a switch."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.configs.draft import Draft
from memcheck.configs.trainer_frozen import architecture_named
from memcheck.models.types import Architecture

FREEZE, PARTS = "training.freeze", "training.lora.parts"
FILLED = "pictures are priced as many as fill the sequence, an upper bound, unless --set training.images states them"


def sees(draft: Draft) -> Architecture | None:
    """The model, if it is a known one with a vision tower and no other."""
    found = architecture_named(draft)
    return found if found is not None and found.vision is not None and not found.others else None


def pictures(draft: Draft, path: str, message: str, more: str = "") -> None:
    """A key that says that the job trains on pictures: priced as the most that a sequence can hold, or refused."""
    if sees(draft) is not None:
        draft.note(path, FILLED + more)
    else:
        draft.refuse(path, message, "write the plan with training.images", ("training.images",))


def shown(draft: Draft, names: Iterable[str]) -> None:
    """The first key of these that the config has says that the job trains on images or video."""
    name = next((name for name in names if draft.config.has(name)), "")
    if name:
        message = f"`{name}`: the job trains on images or video, whose number and size are not in the config"
        pictures(draft, name, message)


def text_alone(draft: Draft, why: str) -> None:
    """Batches without pictures, which skip the tower of a model that has one."""
    if sees(draft) is not None:
        draft.assume("training.images.per_sample", 0, why)


def parts(draft: Draft, path: str, frozen: dict[str, bool], why: str) -> None:
    """What of a model with a tower is trained, or has adapters. ``frozen``: vision, projector and language."""
    if sees(draft) is None:
        return
    found = [name for name, each in frozen.items() if each == (draft.value("training.method") == "full")]
    key = FREEZE if draft.value("training.method") == "full" else PARTS
    if key in draft.settings or not found or (key == PARTS and len(found) == len(frozen)):
        return
    if draft.config.has(path):
        draft.set(key, found, path)
    else:
        draft.assume(key, found, why)
