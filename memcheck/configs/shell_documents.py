"""Files that a launch script writes itself (``cat > ds.json <<EOF``): no arguments, and read where they are named."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping

from memcheck.record import Record

_OPENED = re.compile(
    r"(?:^|[\s;&|({])(?P<verb>cat|tee|python[\d.]*)(?=\s)(?P<before>[^|;&<]*)<<(?P<tabs>-?)\s*(?P<quote>[\"'\\]?)"
    r"(?P<end>[A-Za-z_]\w*)[\"']?(?P<after>.*)\Z"
)
_INTO = re.compile(r"(?:>{1,2}|\btee\b(?:\s+-a)?)\s*[\"']?([^\s\"'<>|]+)")
_RUN = re.compile(r"\.(?:sh|bash|slurm|sbatch|job|pbs)\Z")
_PIPED = re.compile(r"\|\s*(?:sbatch|bash|sh|qsub|ssh)\b")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
MOST_FILLED = 1 << 20
"""Characters that variables may add to a file. Where they would add more, the text stays as it is written."""


class ScriptFile(Record):
    """One file that a script writes from its own text, as in ``cat > ds.json <<EOF``."""

    before: int
    """The number of lines of the script before the file's text."""
    text: str
    literal: bool
    """Whether variables in the text stay as they are written."""


def split_documents(text: str) -> tuple[str, dict[str, ScriptFile]]:
    """The script with blank lines in place of such files, and each by the name that the script gives it.

    Text that is run is no such file: ``sbatch <<EOF``, ``cat <<EOF | bash``, ``cat > job.sh <<EOF``. Neither is text
    that goes into no file, such as an explanation of the script's arguments.
    """
    if "<<" not in text:
        return text, {}
    lines = text.split("\n")
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line.strip(), []).append(number)
    found: dict[str, ScriptFile] = {}
    number = 0
    while number < len(lines):
        opened = _OPENED.search(lines[number][:2000])
        number += 1
        if opened is None or lines[number - 1].lstrip().startswith("#") or _PIPED.search(opened["after"]):
            continue
        ends = places.get(opened["end"], ())
        at = bisect_left(ends, number)
        end = ends[at] if at < len(ends) else None
        into = _INTO.search(f"{opened['verb']} {opened['before']} {opened['after']}")
        if end is None or (into is not None and _RUN.search(into[1])):
            continue
        if into is not None:
            body = "\n".join(lines[number:end])
            found[plain(into[1])] = ScriptFile(before=number, text=body, literal=bool(opened["quote"]))
        lines[number:end] = [""] * (end - number)
        number = end
    return "\n".join(lines), found


def plain(name: str) -> str:
    """A name in which each variable is spelled in one way."""
    return _VARIABLE.sub(lambda each: f"${{{each[1] or each[2]}}}", name)


def filled(written: ScriptFile, variables: Mapping[str, str]) -> str:
    """The file's text, as the shell writes it, in the lines where it stands; as it stands where that would be long."""
    before, text = "\n" * written.before, written.text
    if written.literal:
        return before + text
    named = (variables.get(each[1] or each[2], "") for each in _VARIABLE.finditer(text))
    if sum(map(len, named)) > MOST_FILLED:
        return before + text
    return before + _VARIABLE.sub(lambda each: variables.get(each[1] or each[2], each[0]), text)
