"""Scripts with several commands beside ms-swift's training: what serves, merges or evaluates says nothing of it."""

from __future__ import annotations

import re

_TRAINS = re.compile(r"(?:^|[\s;&])(?:swift|megatron)\s+(?:sft|pt|rlhf)(?=\s|$)")
_OTHER = re.compile(
    r"(?:^|[\s;&])(?:swift|megatron)\s+(?:infer|export|deploy|eval|app|app-ui|web-ui|merge-lora|rollout|sample)(?=\s|$)"
    r"|(?:^|[\s;&])python[\d.]*\s+(?!\S*swift/)[\w./-]+\.py(?=\s|$)"
)


def training_alone(text: str) -> str:
    """The script with blank lines in place of other commands, ms-swift's and Python's, where it has one that trains.

    A command ends where a line does not go on in the next one; a comment among them ends it, too.
    """
    lines = text.split("\n")
    commands: list[list[int]] = [[]]
    for number, line in enumerate(lines):
        commands[-1].append(number)
        if not line.rstrip().endswith("\\"):
            commands.append([])
    said = [" ".join(re.sub(r"(?:^|\s)#.*", "", lines[n])[:2000] for n in command) for command in commands]
    if not any(map(_TRAINS.search, said)):
        return text
    for command, words in zip(commands, said, strict=True):
        if _OTHER.search(words) and not _TRAINS.search(words):
            for number in command:
                lines[number] = ""
    return "\n".join(lines)
