"""Command lines as configs: a script, a list of arguments, or the YAML of Megatron-LM's functional tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.shell_arithmetic import worked_out
from memcheck.configs.shell_branches import Branches
from memcheck.configs.shell_documents import plain, split_documents
from memcheck.configs.shell_lines import single
from memcheck.configs.shell_values import folder, hangs_on, resolved, scheduled, with_default
from memcheck.finding import Location, Span
from memcheck.plan.text import split_lines
from memcheck.record import Record

YAML_SECTION = "MODEL_ARGS"
_TOKEN = re.compile(r"""\$\([^()\s]*\s[^()]{0,200}\)|[^\s"'()#;|&<>\\]+(?:"[^"]*"|'[^']*')?|"[^"]*"|'[^']*'|[;|&<>]+""")
_OPERATORS = {";", "|", "&", "<", ">"}
_CASE = re.compile(r"(?:^|;|\bthen\b|\bdo\b|\belse\b)\s*case\b")
_ESAC = re.compile(r"(?:^|[;\s])esac\b")
_ARM = re.compile(r"\s*\(?[^()=]*\)")
"""One arm of a ``case``: words to compare with, and no arguments."""
_CALLERS = re.compile(r"\$(?:\{?[1-9@]\}?|\{\w+#\*=\})\Z")
_HOLDING = re.compile(
    r"""\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)(\+?=)(?:"([^"]*)"|'([^']*)'|(-[^\s;()]*))\s*(?:;\s*)?(?:\#.*)?\Z"""
)
_OPTION = re.compile(r"(?:^|[\s\"'])--[A-Za-z]")
_PAIR = re.compile(r"--[A-Za-z][\w.-]*\s")
_USED = re.compile(r"\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?\Z")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s()]*)\s*(?:#.*)?\Z")
_OPENED = re.compile(r"(?:^|[;\s])([A-Za-z_]\w*)\+?=([(\"'])")
"""An array, or a variable whose value is in quotes."""
_CLOSING = {"(": ")", '"': '"', "'": "'"}
_CALLED_WITH = ("$@", "$*", "${@}", "${*}")
_UNSEEN = re.compile(r"(?:^|[;\s])([A-Za-z_]\w*)\+?=[\"']?(?:\$\(|`)|\bfor\s+([A-Za-z_]\w*)\s+in\b")
"""A variable that takes what a command prints, or each word of a list."""

_PRINTED = re.compile(r"\s*(?:export\s+|local\s+)?[A-Za-z_]\w*=[\"']?(?:\$\(.*\)|`.*`)[\"']?\s*(?:#.*)?\Z")
"""A variable that takes what a command prints: the command's arguments are its own."""
_STARTED = re.compile(r"\b(?:python[\d.]*|torchrun|deepspeed|accelerate|swift|megatron|cat)\s")
NO_DEFINES: Mapping[str, str] = {}


def load_arguments(
    path: str, text: str, lists: frozenset[str] = frozenset(), defines: Mapping[str, str] = NO_DEFINES
) -> ConfigFile:
    """Arguments by name, without their dashes; a switch is True.

    ``lists``: those that take several words. ``defines``: variables that the script leaves to its caller.

    Raises:
        ConfigError: a YAML file that is none.
    """
    if re.search(rf"^{YAML_SECTION}\s*:", text, re.MULTILINE):
        return _from_yaml(path, text)
    text, documents = split_documents(text)
    found = _from_text(path, text, lists, defines)
    found.documents = {plain(resolved(name, found.variables)): each for name, each in documents.items()}
    return found


def _from_yaml(path: str, text: str) -> ConfigFile:
    """``MODEL_ARGS: {--num-layers: 12, ...}``. The other sections are the test harness's."""
    whole = load_yaml(path, text)
    values: dict[str, object] = {}
    keys: dict[str, str] = {}
    for key, value in whole.values.items():
        section, _, name = key.partition(".")
        if section == YAML_SECTION and name.startswith("--") and value is not False:
            values[name[2:]] = value
            keys[name[2:]] = key
    return ConfigFile(path, values, lambda name: whole.at(keys.get(name, "")), whole.lines)


class _Word(Record):
    """A word of a command line, and where it stands."""

    text: str
    line: int
    column: int
    hangs: bool
    """It is in a branch of the script, or in a variable that is set in one."""
    compared: str = ""
    """A variable on which that branch hangs."""


class _Script:
    """A shell script as it is read, line by line: its variables, and the arguments that they hold."""

    def __init__(self, variables: Mapping[str, str], defines: Mapping[str, str]) -> None:
        self.variables: dict[str, str] = dict(variables)
        self.arrays: set[str] = set()
        self.branches: set[str] = set()
        """Variables that are set in a branch."""
        self._defines = defines
        self._held: dict[str, tuple[_Word, ...]] = {}
        """Arguments that one line puts into a variable: they count where it is used."""
        self._open = Branches()
        self._cases = 0
        self._filled, self._closing = "", ""
        self._listed: set[str] = set()

    def words(self, number: int, whole: str) -> list[_Word]:
        """The words of a line that may be arguments; an assignment has none of its own."""
        return [word for line in single(whole) for word in self._of_line(number, line)]

    def _of_line(self, number: int, whole: str) -> list[_Word]:
        code = without_comment(whole)
        self._list(code)
        whole = worked_out(whole, self.variables, self.branches)
        self._open.line(code, self.variables, self.branches)
        self._cases = max(0, self._cases + len(_CASE.findall(code)) - len(_ESAC.findall(code)))
        if self._open.skipped:
            return []
        arm = _ARM.match(whole) if self._cases else None
        line = whole if arm is None else " " * arm.end() + whole[arm.end() :]
        if self._assigned(line) or self._holds(number, line):
            return []
        self._forget(without_comment(line))
        if _PRINTED.match(line) and not _STARTED.search(line):
            return []
        found = [self._word(word, number, column) for column, word in _words(line)]
        return [inner for word in found for inner in self._expanded(word)]

    def _assigned(self, line: str) -> bool:
        default, own = with_default(line), folder(line, self.variables)
        if default is not None and (self.variables.get(default[0]) or default[0] in self._held):
            return True
        found = _ASSIGNMENT.match(line)
        name, value = default or own or ("" if found is None else found[1], "" if found is None else found[2])
        value = value.strip("\"'")
        if not name or _OPTION.search(value) or _used(value) in self._held:
            return False
        if name in self._defines:
            return True
        if self._open.hanging and name in self.variables and _CALLERS.match(value):
            return True  # an argument of the script's own: called without any, it runs with what stands above
        if self._open.hanging:
            self.branches.add(name)
        self.variables[name] = resolved(value, self.variables)
        held = self._held.pop(name, None)
        if held is not None and self._open.hanging:
            self._held[name] = tuple(word._replace(hangs=True) for word in held)
        return True

    def _list(self, line: str) -> None:
        """Which variables hold arguments that are read where they stand, in an array or over several lines."""
        opened = _OPENED.search(line)
        if opened is not None:
            self._filled, self._closing = opened[1], _CLOSING[opened[2]]
            self.arrays.update([opened[1]] if opened[2] == "(" else [])
            line = line[opened.end() :]
        inside, closed, _ = line.partition(self._closing) if self._filled else ("", "", "")
        if _OPTION.search(inside):
            self._listed.add(self._filled)
        if closed:
            self._filled = ""

    def is_loose(self, word: str) -> bool:
        """Whether a word may be arguments that nothing in the script says."""
        name = _used(word)
        return bool(name) and name not in self.variables and name not in self.arrays and word not in _CALLED_WITH

    def is_many(self, word: str) -> bool:
        """Whether a word is arguments, and no value of the one before it."""
        return word in _CALLED_WITH or _used(word) in self._listed

    def _forget(self, line: str) -> None:
        """What a command or a loop puts into a variable is not what stood there before."""
        for found in _UNSEEN.finditer(line):
            name = found[1] or found[2]
            if name not in self._defines:
                self.variables.pop(name, None)

    def _holds(self, number: int, line: str) -> bool:
        """Whether the line puts arguments into a variable; a variable among them counts with what it holds by now."""
        found = _HOLDING.match(line)
        if found is None:
            return False
        inside = next(group for group in found.groups()[2:] if group is not None)
        start = line.index(inside, found.end(2)) if inside else 0
        words = [
            inner
            for column, word in _words(inside)
            for inner in self._held.get(_used(word), (self._word(word, number, start + column),))
        ]
        if not any(_OPTION.match(word.text) for word in words):
            return False
        before = self._held.get(found[1], ()) if found[2] == "+=" else ()
        self._held[found[1]] = (*before, *words)
        return True

    def _word(self, text: str, line: int, column: int) -> _Word:
        hangs = self._open.hanging > 0
        return _Word(text=text, line=line, column=column, hangs=hangs, compared=self._open.compared if hangs else "")

    def _expanded(self, word: _Word) -> tuple[_Word, ...]:
        held = self._held.get(_used(word.text))
        if held is None:
            return (word,)
        return held if not word.hangs else tuple(each._replace(hangs=True) for each in held)


def _from_text(path: str, text: str, lists: frozenset[str], defines: Mapping[str, str]) -> ConfigFile:
    lines = split_lines(text)
    values: dict[str, Any] = {}
    places: dict[str, Location] = {}
    hanging: dict[str, str] = {}
    loose: dict[str, Location] = {}
    asked: dict[str, str] = {}
    script = _Script({**scheduled(lines), **defines}, defines)
    variables, branches = script.variables, script.branches
    name, behind = "", False
    for number, line in enumerate(lines, 1):
        for word, at, column, hangs, compared in script.words(number, line):
            place = Location(path, Span(at, column, at, column + len(word)))
            flag = re.match(r"--([A-Za-z][\w.-]*)(?:=(.*))?\Z", word)
            if flag is not None:
                name, said = flag[1], None if flag[2] is None else flag[2].lstrip("\"'")
                behind = True
                values[name] = True if said is None else resolved(said, variables)
                hanging.pop(name, None)
                if hangs or (said is not None and hangs_on(said, branches)):
                    hanging[name] = hangs_on(said or "", branches)
                    asked[name] = compared
                places[name] = place
                continue
            takes = bool(name) and (values[name] is True or name in lists)
            if behind and not takes and script.is_loose(word):
                loose.setdefault(word, place)
            if not name or word[:1] in _OPERATORS or script.is_many(word):
                name, behind = "", behind and word[:1] not in _OPERATORS
            elif values[name] is True:
                values[name] = resolved(word, variables)
                if hangs_on(word, branches):
                    hanging[name] = hangs_on(word, branches)
            elif name in lists:
                values[name] = f"{values[name]} {resolved(word, variables)}"
        if not line.rstrip().endswith("\\"):
            name, behind = "", False
    found = ConfigFile(path, values, lambda key: places.get(key, Location(path, Span(1, 1, 1, 1))), lines)
    found.hanging, found.variables, found.loose = hanging, variables, loose
    found.compared = asked
    return found


def _used(word: str) -> str:
    """The variable whose words stand here: ``$ARGS``, ``${ARGS}``, ``${ARGS[@]}``; empty for any other word."""
    found = _USED.match(word)
    return "" if found is None else found[1]


def _words(line: str) -> list[tuple[int, str]]:
    """Words of a shell line with their columns; what follows a ``#`` is a comment.

    An argument and its value in one pair of quotes (``ARGS+=("--tp 4")``) are two words where the array is used.
    """
    words: list[tuple[int, str]] = []
    for found in _TOKEN.finditer(without_comment(line)):
        word = found[0].strip("\"'")
        if _PAIR.match(word):
            words += [(found.start() + 2 + each.start(), each[0]) for each in re.finditer(r"\S+", word)]
        else:
            words.append((found.start() + 1, word))
    return words


def without_comment(line: str) -> str:
    """A line of a shell script up to its comment."""
    return re.sub(r"(?:^|\s)#.*", "", line)
