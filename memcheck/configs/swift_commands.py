"""Scripts with a command that trains and others that serve, merge or evaluate. Only the one that trains is read."""

from __future__ import annotations

import re

from memcheck.configs.arguments import without_comment

_TRAINS = re.compile(r"(?:^|[\s;&])(?:swift|megatron)\s+(?:sft|pt|rlhf)(?=\s|$)")
_OTHER = re.compile(
    r"(?:^|[\s;&])(?:swift|megatron)\s+(?:infer|export|deploy|eval|app|app-ui|web-ui|merge-lora|rollout|sample)(?=\s|$)"
    r"|(?:^|[\s;&])python[\d.]*\s+(?!\S*swift/)[\"']?[\w./${}~-]+\.py[\"']?(?=\s|$)"
)


def training_alone(text: str) -> str:
    """The script with blank lines in place of other commands, ms-swift's and Python's, where it has one that trains."""
    return without_others(text, _TRAINS, _OTHER)


def without_others(text: str, trains: re.Pattern[str], other: re.Pattern[str]) -> str:
    """The script with blank lines in place of the commands of ``other``, where it has one of ``trains``.

    A command ends where a line does not go on in the next one; a comment among them ends it, too.
    """
    lines = text.split("\n")
    commands: list[list[int]] = [[]]
    for number, line in enumerate(lines):
        commands[-1].append(number)
        if not line.rstrip().endswith("\\"):
            commands.append([])
    said = [" ".join(without_comment(lines[n])[:2000] for n in command) for command in commands]
    if not any(map(trains.search, said)):
        return text
    for command, words in zip(commands, said, strict=True):
        if other.search(words) and not trains.search(words):
            for number in command:
                lines[number] = ""
    return "\n".join(lines)
