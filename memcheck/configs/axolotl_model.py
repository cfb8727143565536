"""What an Axolotl config says of the model in addition to its name: whose dimensions it has, and the image size."""

from __future__ import annotations

from memcheck.configs import axolotl_keys as keys
from memcheck.configs.draft import Draft
from memcheck.configs.pictures import IMAGES, resized
from memcheck.configs.trainer_frozen import architecture_named, known_architecture, same_dimensions
from memcheck.configs.trainer_parts import text


def dimensions(draft: Draft) -> None:
    """``base_model_config``: the repository whose config.json the model is built from (``loaders/utils.py``)."""
    path = "base_model_config"
    if draft.config.has(path) and text(draft, path) != text(draft, keys.MODEL):
        own, other = architecture_named(draft), known_architecture(text(draft, path))
        if own is None or other is None or not same_dimensions(own, other):
            message = f"`{path}` is another model's than `{keys.MODEL}`, and decides its dimensions"
            draft.refuse(path, message, "name the model that is built: --model NAME", ("model", "model.name"))
    draft.config.see(path)


def picture_size(draft: Draft) -> None:
    """``image_size``: every picture of a column of its own is padded to a square, or resized to width and height
    (``src/axolotl/processing_strategies.py``).
    """
    path = "image_size"
    written = draft.config.take(path)
    sides = written if isinstance(written, list) else [written, written]
    whole = [each for each in sides if isinstance(each, int) and each > 0]
    if len(whole) == len(sides) == 2:
        resized(draft, path, {"width": whole[0], "height": whole[1]})
    elif written is not None:
        draft.refuse(path, f"`{path}: {written}` is no size of a picture", keys=(IMAGES,))
