"""What a shell script sets its variables to: defaults, and the folders that a script finds itself in."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

_NAME = r"[A-Za-z_]\w*"
_VARIABLE = re.compile(rf"\$(?:\{{({_NAME}|\d+)(?::?[-=](.*))?\}}|({_NAME}|\d+))\Z")
_PART = re.compile(rf"\$(?:\{{({_NAME})\}}|({_NAME}))")
_DEFAULT = re.compile(rf"\s*:\s+[\"']?\$\{{({_NAME}):?=([^}}]*)\}}[\"']?\s*(?:#.*)?\Z")
_BASH = r"[\"']?(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?(?::-\$0)?\})[\"']?"
_LINK = rf"(?:[\"']?\$\(\s*(?:readlink\s+-f|realpath)\s+(?:--\s+)?{_BASH}\s*\)[\"']?|{_BASH})"
_FOLDER = rf"[\"']?\$\(\s*dirname\s+(?:--\s+)?{_LINK}\s*\)[\"']?"
_PWD = r"[\"']?(?:\$PWD|\$\{PWD\}|\$\(\s*pwd\s*\)|`pwd`)[\"']?"
_QUIET = r"(?:\s*&?1?>\s*/dev/null)?(?:\s*2>\s*(?:&1|/dev/null))?"
_HELD = rf"[\"']?\$\{{?({_NAME})\}}?"
_CD = r"[\"']?\$\(\s*(?:cd|realpath|readlink\s+-f)\s+(?:--\s+)?"
_AND = rf"{_QUIET}\s*(?:(?:&&|;)\s*pwd(?:\s+-P)?\s*)?\)[\"']?"
_SET = rf"\s*(?:export\s+|local\s+|readonly\s+|declare\s+-r\s+)?({_NAME})="
_OF_SCRIPT = (
    re.compile(rf"{_SET}(?:{_CD}(?:{_FOLDER}|{_HELD})(/[./\w-]*)?[\"']?{_AND})\s*(?:#.*)?\Z"),
    re.compile(rf"{_SET}(?:{_FOLDER}|{_PWD})()(/[./\w-]*)?\s*(?:#.*)?\Z"),
    re.compile(rf"{_SET}[\"']?\$\(\s*dirname\s+(?:--\s+)?{_HELD}[\"']?\s*\)()[\"']?\s*(?:#.*)?\Z"),
)

_SBATCH = re.compile(
    r"#SBATCH\s+(?:--(nodes|ntasks-per-node)[=\s]|-(N)\s*|--(gres|gpus-per-node)[=\s](?:gpu:)?(?:[A-Za-z][\w.-]*:)?)"
    r"(\d{1,4})(?=\s|$)"
)
_SLURM = {
    "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "gpus-per-node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}
MOST, DEEPEST = 4000, 16
"""Characters of a word and of what variables add to it, and defaults of defaults, that are looked into."""


def resolved(word: str, variables: Mapping[str, str], deep: int = 0) -> str:
    """Variables that the same file sets to plain text; a word with any other stays as it is, and one that would be
    long, or whose defaults have many defaults of their own.
    """
    if len(word) > MOST or deep > DEEPEST:
        return word
    found = _VARIABLE.match(word)
    if found is None:
        if sum([len(variables.get(each[1] or each[2], "")) for each in _PART.finditer(word)]) > MOST:
            return word
        whole = _PART.sub(lambda each: variables.get(each[1] or each[2]) or each[0], word)
        return word if "$" in whole else whole
    value = variables.get(found[1] or found[3])
    if value is None:
        value = resolved((found[2] or "").strip("\"'"), variables, deep + 1)
    return value if value and "$" not in value else word


def hangs_on(word: str, branches: Collection[str]) -> str:
    """The first variable in a word that is set in a branch; empty where none is."""
    found = _VARIABLE.match(word.strip("\"'"))
    named = [found[1] or found[3]] if found is not None else [each[1] or each[2] for each in _PART.finditer(word)]
    return next((name for name in named if name in branches), "")


def with_default(line: str) -> tuple[str, str] | None:
    """``: "${NAME:=VALUE}"``: the variable, and what it holds where nothing has set it."""
    found = _DEFAULT.match(line)
    return None if found is None else (found[1], found[2].strip("\"'"))


def asked_of_slurm(lines: Iterable[str]) -> Iterator[tuple[str, int, re.Match[str]]]:
    """What a batch script's comments ask for: the option, its line from 1, and the match, whose last group counts."""
    for number, line in enumerate(lines, 1):
        asked = _SBATCH.match(line)
        if asked is not None:
            yield asked[1] or asked[2] or asked[3], number, asked


def scheduled(lines: Iterable[str]) -> dict[str, str]:
    """What Slurm sets for a batch script that asks for nodes, tasks and GPUs in its own comments."""
    return {name: asked[4] for option, _, asked in asked_of_slurm(lines) for name in _SLURM[option]}


def folder(line: str, variables: Mapping[str, str]) -> tuple[str, str] | None:
    """A variable that holds the script's own folder, or one that lies at a path from it; relative to the script."""
    if "dirname" not in line and "pwd" not in line.lower():
        return None
    for number, pattern in enumerate(_OF_SCRIPT):
        found = pattern.match(line)
        if found is None:
            continue
        base = variables.get(found[2], "") if found[2] else "."
        if not base.startswith("."):
            return None
        below = (found[3] or "") + ("/.." if number == len(_OF_SCRIPT) - 1 else "")
        return found[1], os.path.normpath(base + below)
    return None
