"""Frozen parts of models of pictures under FSDP1: what of them lies in the root's flat tensor wants a gradient with it.

The stem of a tower, its last norm and its projector are no layers, so that they are in one flat tensor with embedding,
final norm and head; a frozen tower whose stem wants a gradient keeps its graph (torch 2.13
distributed/fsdp/_flat_param.py, ``_use_unsharded_views``). The optimizer steps on none of it.
"""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.frameworks.torch.tower_kinds import ATTENTION, EMBEDDING, embeds_apart, is_unsplit, parts_attention
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.models.vision import Vision

FROZEN_LAYERS, FROZEN_ATTENTION, FROZEN_EMBEDDING = "vision:layers", "vision:attention", "vision:embedding"
"""Words in place of ``vision``: what of a frozen tower wants no gradient."""


def flattened_parts(job: TrainingJob, a: Architecture, vision: Vision, freeze: tuple[str, ...]) -> tuple[str, ...]:
    """The words of ``freeze``, with those in place of parts that say what of them wants no gradient."""
    found: list[str] = []
    for word in freeze:
        if word == "vision" and not is_unsplit(job, vision):
            found.append(FROZEN_ATTENTION if parts_attention(job, vision) else FROZEN_LAYERS)
            found += [FROZEN_EMBEDDING] if embeds_apart(job, vision) else []
        elif word == "language":
            found.append(f"layers:0-{a.num_layers}")
        elif word not in ("vision", "projector"):
            found.append(word)
    return tuple(found)


def layers_of_tower(job: TrainingJob, tower: Setting) -> Setting:
    """The setting of a tower's layers."""
    if FROZEN_LAYERS in job.freeze:
        return tower._replace(trained=False)
    if FROZEN_ATTENTION in job.freeze:
        return tower._replace(frozen=tuple(name.removesuffix(".") for name in ATTENTION))
    return tower


def stem_of_tower(job: TrainingJob, tower: Setting, vision: Vision) -> Setting:
    """The setting of a tower's stem."""
    if FROZEN_EMBEDDING not in job.freeze:
        return tower
    names = tuple(t.name.removesuffix(".weight") for t in vision.stem if t.name.startswith(EMBEDDING))
    return tower._replace(frozen=names, trained=len(names) < len(vision.stem))
