"""How a framework treats a tower: which modules FSDP makes groups of, and which outputs live until the loss.

FSDP wraps by the classes that a model names, or layer by layer. Source: ``_no_split_modules`` of transformers 5.24's
classes, of every model inside of one.
"""

from __future__ import annotations

from memcheck.accounts.ranks import OF_LANGUAGE, TOWERS, WRAPPED
from memcheck.families.tower import tower_forward
from memcheck.job.images import gives, has_outputs
from memcheck.job.types import TrainingJob
from memcheck.job.versions import version_of_models
from memcheck.models.vision import Vision

ATTENTION = ("self_attn.", "attention.")
"""Prefixes of the tensors of a layer's attention."""
EMBEDDING = ("embeddings.", "patch_embedder.")
"""Prefixes of the tensors of a stem's own module."""
RESAMPLER = ("perceiver_resampler.layers.", "modality_projection.")
"""Prefixes of the tensors of a projector's wrapped modules. They run one by one, and are one unit here."""


def names_classes(job: TrainingJob) -> bool:
    """Whether the framework wraps the classes that a model names, and no other modules."""
    return job.framework.unsplit is not None


def is_unsplit(job: TrainingJob, vision: Vision) -> bool:
    """Whether the whole tower belongs to FSDP's root group."""
    return names_classes(job) and not tower_forward(vision.kind).wrapped


def parts_attention(job: TrainingJob, vision: Vision) -> bool:
    """Whether FSDP wraps the attention of each tower layer and leaves the rest of the layer to the root."""
    return names_classes(job) and "attention" in tower_forward(vision.kind).wrapped


def embeds_apart(job: TrainingJob, vision: Vision) -> bool:
    """Whether FSDP wraps the patch embedding."""
    return names_classes(job) and "embedding" in tower_forward(vision.kind).wrapped


def wrapped_of(job: TrainingJob, vision: Vision) -> tuple[str, ...]:
    """Return the kinds of modules that FSDP wraps: layers, and for some towers the patch embedding or the projector."""
    if is_unsplit(job, vision):
        return OF_LANGUAGE
    embedded = ("stem",) if embeds_apart(job, vision) else ()
    return (
        WRAPPED
        + embedded
        + (("projector",) if names_classes(job) and "projector" in tower_forward(vision.kind).wrapped else ())
    )


def own_parts(job: TrainingJob, vision: Vision) -> dict[str, tuple[str, ...]]:
    """Return the name prefixes of tensors in FSDP units of their own, by kind of unit; the root has all others."""
    modules_by_part: dict[str, tuple[str, ...]] = {}
    if parts_attention(job, vision):
        modules_by_part |= dict.fromkeys(TOWERS, ATTENTION)
    if embeds_apart(job, vision):
        modules_by_part["stem"] = EMBEDDING
    if names_classes(job) and "projector" in tower_forward(vision.kind).wrapped:
        modules_by_part["projector"] = RESAMPLER
    if "stem" in modules_by_part or "projector" in modules_by_part:  # idle
        modules_by_part["beside"] = modules_by_part.get("stem", ()) + modules_by_part.get("projector", ())
    return modules_by_part


def gives_towers(job: TrainingJob, vision: Vision) -> bool:
    """Say whether the model's output carries the tower's rows and image tokens."""
    framework = job.framework
    if not has_outputs(vision, framework):
        return False
    return gives(version_of_models(job, framework))


def stays(job: TrainingJob, vision: Vision) -> bool:
    """Whether a tower's outputs live until the loss is computed."""
    return vision.to_loss or gives_towers(job, vision)


def sinks(job: TrainingJob, vision: Vision) -> bool:
    """Say whether DDP's function goes through trained layers after the features: they get no gradient, so that DDP has
    to be told to look for such.
    """
    trained = job.lora is not None or "vision" not in job.freeze
    if not (vision.idle and trained and gives_towers(job, vision)):
        return False
    from memcheck.frameworks.torch.ddp import buckets

    return buckets(job).exist
