"""A release that is stated beside a config, ``--framework-version``: which key of a plan it is."""

from __future__ import annotations

import re

TRAINERS = frozenset({"trl", "axolotl", "llamafactory", "ms-swift"})
"""Formats of trainers that run on top of transformers."""
TRANSFORMERS = 4
"""From which major release on one is transformers'. The trainers' own are older by number, but for ms-swift's."""


def is_transformers(release: str) -> bool:
    """Whether the release of a job with transformers is that of transformers, not of the trainer on top of it."""
    found = re.match(r"v?(\d{1,9})", release)
    return found is not None and int(found[1]) >= TRANSFORMERS


def release_key(format: str, release: str) -> str:
    """The dotted key of a plan that says it."""
    trainer = format in TRAINERS and not is_transformers(release)
    return "training.trainer.version" if trainer else "training.framework_version"
