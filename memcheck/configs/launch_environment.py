"""Variables before a launch: where they are set, and what the variable of PyTorch's allocator says."""

from __future__ import annotations

import re

from memcheck.configs.draft import Draft
from memcheck.finding import Location, Span

SEGMENTS = "training.expandable_segments"
ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_ASSIGNED = r"\s*(?:export\s+)?(?:\w+=\S*\s+)*{}=([^\s\\]+)"


def allocator(draft: Draft) -> None:
    """Whether segments expand, where the script sets PyTorch's variable for it."""
    for name in ALLOCATORS:
        text, at = written(draft, name)
        found = re.search(r"expandable_segments:\s*(true|false)", text, re.IGNORECASE)
        if at is not None and found is not None and SEGMENTS not in draft.settings:
            if name not in draft.config.values:
                draft.config.adopt(name, text, at)
            draft.set(SEGMENTS, found[1].lower() == "true", name)


def written(draft: Draft, name: str) -> tuple[str, Location | None]:
    """The value of a variable and its place, in a script or below ``ENV`` of a YAML; the first assignment counts."""
    config, below = draft.config, f"ENV.{name}"
    if config.has(below):
        return str(config.take(below)), config.at(below)
    for number, line in enumerate(config.lines, 1):
        found = re.match(_ASSIGNED.format(name), line[:1000])
        if found is not None:
            span = Span(number, found.start(1) + 1, number, found.end(1) + 1)
            return found[1].strip("'\""), Location(config.path, span)
    return "", None
