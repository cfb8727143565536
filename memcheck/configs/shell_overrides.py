"""Words of a command that change a key of its config: ``batch_size=6``, ``+trainer.devices=8``, ``~profiler``."""

from __future__ import annotations

import re

from memcheck.finding import Location
from memcheck.record import Record

_PROGRAM = re.compile(
    r"(?:\S*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate|tune|llamafactory-cli|axolotl|trl|swift|megatron|automodel"
    r"|litgpt|composer|nemo)\Z|\S+\.py\Z"
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
