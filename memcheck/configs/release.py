"""The plan key for a release that ``--framework-version`` states in addition to a config."""

from __future__ import annotations

import re

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.versions import TRANSFORMERS as OPTION

TRAINERS = frozenset({"trl", "axolotl", "llamafactory", "ms-swift"})
"""Formats of trainers that run on top of transformers."""
TRANSFORMERS = 4
"""From which major release on one is transformers'. The trainers' own are older by number, but for ms-swift's."""


def is_transformers(release: str) -> bool:
    """Whether the release of a job with transformers is that of transformers, not of the trainer on top of it."""
    found = re.match(r"v?(\d{1,9})", release)
    return found is not None and int(found[1]) >= TRANSFORMERS


def release_key(format: str, release: str, framework: object) -> str:
    """The dotted key of a plan that says it.

    ``framework``: that of the plan. DeepSpeed's and PyTorch's own releases are no transformers', which builds the model
    there, too.
    """
    if not is_transformers(release):
        return "training.trainer.version" if format in TRAINERS else "training.framework_version"
    profile = FRAMEWORKS.get(str(framework))
    apart = profile is not None and not profile.versions_models and OPTION in profile.options
    return f"training.options.{OPTION}" if apart else "training.framework_version"
