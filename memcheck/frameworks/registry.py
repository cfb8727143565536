"""Every framework that memcheck knows. A new one is a folder and a line here: then run ``python -m docs.generate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from memcheck.edge.imports import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.frameworks.stack import Stack, Timing
    from memcheck.job.framework import Framework

FOLDERS = {
    "huggingface": "transformers",
    "pytorch": "torch",
    "torchtitan": "torchtitan",
    "megatron": "megatron",
    "deepspeed": "deepspeed",
    "litgpt": "litgpt",
    "torchtune": "torchtune",
    "nanotron": "nanotron",
}
"""Names that a plan gives, and the folder next to this file whose code estimates each."""
TRAINERS = {"unsloth": "unsloth"}
"""Trainers with a profile of their own (``Framework.variants``), and their folders."""


class Frameworks(Mapping[str, "Framework"]):
    """Profiles by the name that a plan gives. One is loaded when it is asked for: a check needs its own.

    The profiles of ``TRAINERS`` are found by their names, and are not listed among the frameworks.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Framework] = {}

    def __getitem__(self, name: str) -> Framework:
        """What memcheck knows of a framework; KeyError for one that it does not know."""
        found = self._loaded.get(name)
        if found is None:
            folder = TRAINERS.get(name) or FOLDERS[name]
            found = self._loaded[name] = import_module(f"memcheck.frameworks.{folder}.profile").FRAMEWORK
        return found

    def __contains__(self, name: object) -> bool:
        """Whether it is a name that ``training.framework`` may have."""
        return name in FOLDERS

    def __iter__(self) -> Iterator[str]:
        return iter(FOLDERS)

    def __len__(self) -> int:
        return len(FOLDERS)


FRAMEWORKS = Frameworks()


@lru_cache(maxsize=16)
def stack_of(framework: Framework) -> Stack:
    """The functions that estimate a framework's ranks, which are loaded for a job that runs on it."""
    stack: Stack = import_module(f"memcheck.frameworks.{framework.stack}.stack").STACK
    return stack


@lru_cache(maxsize=16)
def timing_of(framework: Framework) -> Timing:
    """Import and return what a framework's step time depends on."""
    timing: Timing = import_module(f"memcheck.frameworks.{framework.timing}.timing").TIMING
    return timing
