"""Kinds of a tower's units that FSDP makes groups of: by the classes that a model names, or layer by layer.

Source: ``_no_split_modules`` of transformers 5.24's classes, of every model inside of one.
"""

from __future__ import annotations

from memcheck.frameworks.torch.step_options import OF_LANGUAGE, TOWERS, WRAPPED
from memcheck.job.types import TrainingJob
from memcheck.models.vision import Vision

UNSPLIT = ("got_ocr2", "paddleocr")
"""Kinds of towers that name none of their classes."""
ATTENTION_ALONE = ("aria", "idefics2", "idefics3", "ovis2")
"""Towers for which ``_no_split_modules`` names only the attention of a layer (``Idefics3VisionAttention``): the rest of
the layer is in the root's group.
"""
EMBEDDED = (
    "aya_vision", "cohere2_vision", "deepseek_vl", "gemma3", "gemma4", "lfm2", "llava", "llava_next", "llava_onevision",
    "paligemma",
)  # fmt: skip
"""Towers for which ``_no_split_modules`` names ``SiglipVisionEmbeddings``, ``CLIPVisionEmbeddings`` or
``Gemma4VisionPatchEmbedder``.
"""
RESAMPLED = ("idefics2",)
"""Towers for which ``_no_split_modules`` names ``Idefics2PerceiverLayer`` and ``Idefics2MLP``."""
ATTENTION = ("self_attn.", "attention.")
"""How names of a layer's attention begin."""
EMBEDDING = ("embeddings.", "patch_embedder.")
"""How those of a stem's own module do."""
RESAMPLER = ("perceiver_resampler.layers.", "modality_projection.")
"""How those of a projector's modules do: layers that run one by one, taken as one unit here."""


def names_classes(job: TrainingJob) -> bool:
    """Whether the classes decide."""
    return job.framework.wraps_classes


def is_unsplit(job: TrainingJob, vision: Vision) -> bool:
    """Whether all of the tower is the root's."""
    return names_classes(job) and vision.kind in UNSPLIT


def parts_attention(job: TrainingJob, vision: Vision) -> bool:
    """Whether attention alone is a unit of its own, of each of the tower's layers."""
    return names_classes(job) and vision.kind in ATTENTION_ALONE


def embeds_apart(job: TrainingJob, vision: Vision) -> bool:
    """Whether the patch embedding is a unit of its own."""
    return names_classes(job) and vision.kind in EMBEDDED


def wrapped_of(job: TrainingJob, vision: Vision) -> tuple[str, ...]:
    """Layers, and with some towers the patch embedding or the projector; of one that names nothing none."""
    if is_unsplit(job, vision):
        return OF_LANGUAGE
    embedded = ("stem",) if embeds_apart(job, vision) else ()
    return WRAPPED + embedded + (("projector",) if names_classes(job) and vision.kind in RESAMPLED else ())


def own_parts(job: TrainingJob, vision: Vision) -> dict[str, tuple[str, ...]]:
    """By kind of unit, how the names of the tensors begin that are units of their own; the others are the root's."""
    found: dict[str, tuple[str, ...]] = {}
    if parts_attention(job, vision):
        found |= dict.fromkeys(TOWERS, ATTENTION)
    if embeds_apart(job, vision):
        found["stem"] = EMBEDDING
    if names_classes(job) and vision.kind in RESAMPLED:
        found["projector"] = RESAMPLER
    if "stem" in found or "projector" in found:  # idle
        found["beside"] = found.get("stem", ()) + found.get("projector", ())
    return found
