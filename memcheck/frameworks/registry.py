"""Every framework memcheck knows. Adding one: write its folder, name it here."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from memcheck.frameworks.deepspeed.profile import DEEPSPEED
from memcheck.frameworks.litgpt.profile import LITGPT
from memcheck.frameworks.megatron.profile import MEGATRON
from memcheck.frameworks.torch.profile import PYTORCH
from memcheck.frameworks.torchtitan.profile import TORCHTITAN
from memcheck.frameworks.torchtune.profile import TORCHTUNE
from memcheck.frameworks.transformers.profile import HUGGINGFACE
from memcheck.job.profile import Profile

if TYPE_CHECKING:
    from memcheck.frameworks.stack import Stack

FRAMEWORKS: dict[str, Profile] = {
    f.name: f for f in (HUGGINGFACE, PYTORCH, TORCHTITAN, MEGATRON, DEEPSPEED, LITGPT, TORCHTUNE)
}
FOLDERS = {"huggingface": "transformers", "pytorch": "torch"}
"""Folders of frameworks whose plan name is not the package whose code runs."""


@lru_cache(maxsize=16)
def stack_of(name: str) -> Stack:
    """The doors of a framework's folder, which are loaded for a job that runs on it."""
    stack: Stack = import_module(f"memcheck.frameworks.{FOLDERS.get(name, name)}.stack").STACK
    return stack
