"""Whether a model's output carries all that its vision tower has returned, which hangs on transformers' version."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.job.defaults import Defaults
from memcheck.job.framework import Framework
from memcheck.job.versions import TRANSFORMERS, is_before
from memcheck.models.vision import Vision
from memcheck.plan import types as plan_types

GIVES = (5, 24)
"""The first whose outputs have ``image_outputs`` (modeling_outputs.py, ``MultimodalCausalLMOutputWithPast``)."""


def has_outputs(vision: Vision, framework: Framework) -> bool:
    """Whether the class has such an output since then: transformers' own, but for those that have none of their own
    (Phi-4), whose language model has a head inside (C-RADIO), or that read pictures by cross attention.
    """
    return framework.style.makes_masks and not (vision.puts or vision.crosses or vision.to_loss)


def gives(version: str | None) -> bool:
    """Whether this version's output carries the tower's; None: the newest."""
    return not is_before(version, GIVES)


def note_version(
    training: plan_types.TrainingSpec,
    vision: Vision,
    framework: Framework,
    options: Mapping[str, object],
    defaults: Defaults,
) -> None:
    """List what is assumed where a plan does not say which version it runs."""
    if not has_outputs(vision, framework):
        return
    named = framework.versions_models
    stated = training.framework_version if named else options.get(TRANSFORMERS)
    if stated is None and (named or TRANSFORMERS in framework.options):
        key = "training.framework_version" if named else f"training.options.{TRANSFORMERS}"
        defaults.note(key, "5.24 or newer", "the model's output keeps what the tower returned; older ones need less")
