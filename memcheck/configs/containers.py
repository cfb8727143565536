"""Launches inside a container (``docker run ... IMAGE torchrun ...``): read without what starts the container."""

from __future__ import annotations

import re

from memcheck.configs.launch_lines import Command, commands_of

_CONTAINER = re.compile(
    r"(?:^|[\s;&(\"'])(?:(?:sudo\s+)?(?:docker|podman|nerdctl)\s+(?:container\s+)?(?:run|exec)"
    r"|(?:docker[\s-]compose)\s[^|;&]{0,200}?(?:run|exec)|(?:singularity|apptainer)\s+(?:run|exec)"
    r"|kubectl\s[^|;&]{0,200}?(?:run|exec)|enroot\s+start)\s"
)
_LAUNCH = re.compile(
    r"\s[\"']?((?:torchrun|accelerate\s+launch|deepspeed|python[\d.]*|uv\s+run|trl|swift|megatron|llamafactory-cli|tune|axolotl"
    r"|litgpt|(?:/bin/)?(?:ba)?sh\s+-\w*c)\s)"
)
_NAMES = ("docker", "podman", "nerdctl", "singularity", "apptainer", "kubectl", "enroot")
LOOKED_AT = 8000
"""Characters of a command in which the launch is looked for."""


def without_containers(text: str) -> str:
    """A script with blanks in place of what starts a container, where a launch follows; every word keeps its place."""
    if not any(name in text for name in _NAMES):
        return text
    lines = text.split("\n")
    for command in commands_of(lines):
        found = _inside(command)
        if found is not None:
            _blank(lines, command, *found)
    return "\n".join(lines)


def in_container(command: Command) -> bool:
    """Whether a command starts a container."""
    return _CONTAINER.search(command.text[:LOOKED_AT]) is not None


def _inside(command: Command) -> tuple[int, int] | None:
    """Where what starts a container begins, and where the launch in it does."""
    head = command.text[:LOOKED_AT]
    container = _CONTAINER.search(head)
    launch = None if container is None else _LAUNCH.search(head, container.end() - 1)
    return None if container is None or launch is None else (container.start(), launch.start(1))


def _blank(lines: list[str], command: Command, start: int, end: int) -> None:
    ends = [each for each, _ in command.lines[1:]] + [len(command.text)]
    for (begin, number), until in zip(command.lines, ends, strict=True):
        first, last = max(start, begin) - begin, min(end, until) - begin
        if first < last:
            line = lines[number - 1]
            lines[number - 1] = line[:first] + " " * (last - first) + line[last:]
