"""Variables in front of an ms-swift command, or below ``ENV`` in its YAML: processes, nodes, pictures, allocator."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcheck.configs.draft import Draft
from memcheck.configs.types import ConfigProblem, KeyRow
from memcheck.finding import Location, Span

SEGMENTS = "training.expandable_segments"
ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
NODES = "NNODES"
_ASSIGNED = r"\s*(?:export\s+)?(?:\w+=\S*\s+)*{}=([^\s\\]+)"
_HELP = "state it beside the config: --nodes 2"


def environment(draft: Draft, names: Mapping[str, str]) -> None:
    """What the variables say. ``names``: those of whole numbers, and the plan's key of each where it has one."""
    for name in (*names, *ALLOCATORS):
        written, at = _written(draft, name)
        if at is None or name in draft.config.values:
            continue
        if name in ALLOCATORS:
            if re.search(r"expandable_segments:\s*true", written, re.IGNORECASE):
                draft.config.adopt(name, written, at)
                draft.set(SEGMENTS, True, name)
            continue
        key = names[name]
        if written.isdigit() and key not in draft.settings:
            draft.config.adopt(name, int(written), at)
            if key:
                draft.rows((KeyRow(name, key),))
        elif name == NODES and "$" in written:
            message = f"`{name}={written}`: how many nodes there are is not in the script"
            draft.problems.append(ConfigProblem(at, message, _HELP, keys=(key,)))
    draft.harmless((), ("ENV.",))


def _written(draft: Draft, name: str) -> tuple[str, Location | None]:
    """The value of a variable and its place; the first assignment counts."""
    config, below = draft.config, f"ENV.{name}"
    if config.has(below):
        return str(config.take(below)), config.at(below)
    for number, line in enumerate(config.lines, 1):
        found = re.match(_ASSIGNED.format(name), line[:1000])
        if found is not None:
            span = Span(number, found.start(1) + 1, number, found.end(1) + 1)
            return found[1].strip("'\""), Location(config.path, span)
    return "", None
