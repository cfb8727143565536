"""Files that a script writes itself, and keys that a launch sets in Hydra's way."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping

from memcheck.plan.finding import Location
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


_PROGRAM = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate|tune|llamafactory-cli|axolotl|trl|swift|megatron|automodel"
    r"|litgpt|composer|nemo)\Z|\S+\.py\Z|(?:\S*/)?training/train\.sh\Z"
)
"""A program or a script that takes arguments; what stands before it on its line sets variables of the shell."""
_SAID = re.compile(r"\+{0,2}(?P<key>[A-Za-z_][\w.@/-]*)=(?P<value>.*)\Z", re.DOTALL)
_DIGIT = re.compile(r"\d\Z")
_SEPARATOR = re.compile(r"[;|]|&\Z|&&")


def sets_a_key(word: str) -> bool:
    """Whether a word has the form of an override."""
    return _SAID.match(word) is not None


class Positional(Record):
    """A word after a program that is neither an option nor an option's value."""

    text: str
    program: str
    """What runs: ``tune``, ``python3``, ``train.py``."""
    location: Location

    @property
    def key(self) -> str:
        """The key that it sets; empty where it sets none."""
        found = _SAID.match(self.text)
        return "" if found is None else found["key"]

    @property
    def said(self) -> str:
        """The text after the equals sign; empty for a word without one."""
        found = _SAID.match(self.text)
        return "" if found is None else found["value"]


class Positionals:
    """Collects them from the words of a script, one after the other."""

    def __init__(self) -> None:
        self.found: list[Positional] = []
        self.begun = False
        """Whether the command has a word that sets no shell variable. An assignment after such a word is an
        argument."""
        self._program = ""
        self._redirected = False

    def end(self) -> None:
        """The command ends with its line."""
        self.begun, self._program, self._redirected = False, "", False

    def operator(self, sign: str) -> None:
        """``>`` takes the next word, and the digit before it; ``;``, ``|`` and ``&&`` end the command."""
        if "<" in sign or ">" in sign:
            self._redirected = True
            if self.found and _DIGIT.match(self.found[-1].text):
                self.found.pop()
        elif _SEPARATOR.search(sign):
            self.end()

    def word(self, text: str, at: Location, *, taken: bool) -> str:
        """Look at a word that is no option, and give the key that it sets. ``taken``: it is an option's value."""
        if self._redirected:
            self._redirected = False
            return ""
        self.begun |= _SAID.match(text) is None
        program = _PROGRAM.match(text) is not None
        if program and not self._program.endswith(".py"):
            self._program = text.rpartition("/")[2]
        if taken or program or not self._program or text == "--":
            return ""
        self.found.append(Positional(text=text, program=self._program, location=at))
        return self.found[-1].key
