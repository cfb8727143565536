"""Command lines as configs: a script, a list of arguments, or the YAML of Megatron-LM's functional tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.megatron_bridge import is_bridge, load_bridge
from memcheck.configs.shell_documents import Positionals, plain, sets_a_key, split_documents
from memcheck.configs.shell_values import (
    Branches,
    ScriptGrowth,
    folder,
    hangs_on,
    resolved,
    scheduled,
    single,
    with_default,
    worked_out,
)
from memcheck.configs.types import NO_DEFINES
from memcheck.plan.finding import Location, Span
from memcheck.plan.text import split_lines
from memcheck.record import Record

YAML_SECTION = "MODEL_ARGS"
_TOKEN = re.compile(
    r"""\$\(\([^()]{0,200}\)\)|\$\([^()\s]*\s[^()]{0,200}\)|(?:[^\s"'()#;|&<>\\]+|"[^"]*"|'[^']*')+|[;|&<>]+"""
)
_QUOTED = re.compile(r""""([^"]*)"|'([^']*)'""")
_OPERATORS = {";", "|", "&", "<", ">"}
_CASE = re.compile(r"(?:^|;|\bthen\b|\bdo\b|\belse\b)\s*case\b")
_ESAC = re.compile(r"(?:^|[;\s])esac\b")
_ARM = re.compile(r"\s*\(?[^()=]*\)")
"""One arm of a ``case``: words to compare with, and no arguments."""
_CALLERS = re.compile(r"\$(?:\{?[1-9@]\}?|\{\w+#\*=\})\Z")
_HOLDING = re.compile(
    r"""\s*(?:export\s+|local\s+)?([A-Za-z_]\w*)(\+?=)(?:"([^"]*)"|'([^']*)'|(-[^\s;()]*))\s*(?:;\s*)?(?:\#.*)?\Z"""
)
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?\Z", re.DOTALL)
_OPTION = re.compile(r"(?:^|[\s\"'])--[A-Za-z]")
_PAIR = re.compile(r"--[A-Za-z][\w.-]*\s")
_RUNS_TEXT = re.compile(r"-\w{0,3}c\Z|eval\Z")
"""What takes a whole command as its next word: ``bash -c``, ``bash -lc``, ``eval``."""
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


def load_arguments(
    path: str,
    text: str,
    lists: frozenset[str] = frozenset(),
    defines: Mapping[str, str] = NO_DEFINES,
    short: Mapping[str, str] = NO_DEFINES,
) -> ConfigFile:
    """Arguments by name, without their dashes; a switch is True.

    ``lists``: those that take several words. ``defines``: variables that the script leaves to its caller. ``short``:
    the long names of arguments with one dash.

    Raises:
        ConfigError: a YAML file that is none.
    """
    if re.search(rf"^{YAML_SECTION}\s*:", text, re.MULTILINE):
        return _from_yaml(path, text)
    if is_bridge(text):
        return load_bridge(path, text)
    text, documents = split_documents(text)
    found = _from_text(path, text, lists, defines, short)
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
    """Whether the word is in a branch of the script, or in a variable that a branch sets."""
    compared: str = ""
    """The variable that decides whether that branch runs; empty where no single one does."""
    sets: bool = False
    """Whether the word is ``key=value`` for a config, inside a variable. Where the variable is used, such a word is not
    the value of the option before it."""


class _Script:
    """A shell script as it is read, line by line: its variables, and the arguments that they hold."""

    def __init__(self, variables: Mapping[str, str], defines: Mapping[str, str], growth: ScriptGrowth) -> None:
        self._growth = growth
        self.variables: dict[str, str] = dict(variables)
        self.arrays: set[str] = set()
        self.branches: set[str] = set()
        """Variables that are set in a branch."""
        self._defines = defines
        self._held: dict[str, list[_Word]] = {}
        """Arguments that one line puts into a variable: they count where it is used."""
        self._open = Branches()
        self._cases = 0
        self._filled, self._closing = "", ""
        self._listed: set[str] = set()
        self.inside = False
        """Whether the line goes on with the arguments of a command: what looks like an assignment is none."""

    def words(self, number: int, whole: str) -> list[_Word]:
        """The words of a line that may be arguments; an assignment has none of its own."""
        return [word for line in single(whole) for word in self._of_line(number, line)]

    def _of_line(self, number: int, whole: str) -> list[_Word]:
        code = without_comment(whole)
        filled = self._list(number, code)
        whole = worked_out(whole, self.variables, self.branches)
        self._open.line(code, self.variables, self.branches)
        self._cases = max(0, self._cases + len(_CASE.findall(code)) - len(_ESAC.findall(code)))
        if self._open.skipped:
            return []
        arm = _ARM.match(whole) if self._cases else None
        line = whole if arm is None else " " * arm.end() + whole[arm.end() :]
        if not (filled or self.inside) and (self._assigned(number, line) or self._holds(number, line)):
            return []
        self._forget(without_comment(line))
        if _PRINTED.match(line) and not _STARTED.search(line):
            return []
        found = [self._word(word, number, column) for column, word in _words(line)]
        return [inner for word in found for inner in self._expanded(word)]

    def resolved(self, name: str, number: int, word: str) -> str:
        """A word with its variables filled in, which counts towards what the script's variables add to it.

        Raises:
            ConfigError: they add too much.
        """
        found = resolved(word, self.variables)
        self._growth.characters(name, number, word, found)
        return found

    def _assigned(self, number: int, line: str) -> bool:
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
        self.variables[name] = self.resolved(name, number, value)
        held = self._held.pop(name, None)
        if held is not None and self._open.hanging:
            self._growth.words(name, number, len(held))
            self._held[name] = [word._replace(hangs=True) for word in held]
        return True

    def _list(self, number: int, line: str) -> bool:
        """Note which variables hold arguments that are read where they stand, in an array or over several lines.

        True for a line inside such a list: nothing on it is an assignment.
        """
        before, start = self._filled, 0
        opened = _OPENED.search(line)
        if opened is not None:
            self._filled, self._closing, start = opened[1], _CLOSING[opened[2]], opened.end()
            if opened[2] == "(":
                self.arrays.add(opened[1])
                self._held.pop(opened[1], None)
        name = self._filled
        inside, closed, _ = line[start:].partition(self._closing) if name else ("", "", "")
        if _OPTION.search(inside):
            self._listed.add(name)
        if name and (self._closing == ")" or not (opened and closed)):
            self._keep(name, number, start, inside)
        if closed:
            self._filled = ""
        return bool(before)

    def _keep(self, name: str, number: int, start: int, inside: str) -> None:
        """Keep the words of a list that set keys of a config: they count where the list is used."""
        option, found = False, []
        for column, text in _words(inside):
            if sets_a_key(text) and not option:
                found.append(self._word(text, number, start + column)._replace(sets=True))
            option = text.startswith("--") and "=" not in text
        if found:
            self._held.setdefault(name, []).extend(found)

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
        words: list[_Word] = []
        for column, word in _words(inside):
            held = self._held.get(_used(word))
            if held is None:
                words.append(self._word(word, number, start + column))
            else:
                self._growth.words(_used(word), number, len(held))
                words += held
        several = len(words) > 1 and any(sets_a_key(word.text) for word in words)
        if not several and not any(_OPTION.match(word.text) for word in words):
            return False
        if found[2] == "+=":
            self._held.setdefault(found[1], []).extend(words)
        else:
            self._held[found[1]] = words
        return True

    def _word(self, text: str, line: int, column: int) -> _Word:
        hangs = self._open.hanging > 0
        return _Word(text=text, line=line, column=column, hangs=hangs, compared=self._open.compared if hangs else "")

    def _expanded(self, word: _Word) -> list[_Word]:
        held = self._held.get(_used(word.text))
        if held is None:
            return [word]
        self._growth.words(_used(word.text), word.line, len(held))
        return held if not word.hangs else [each._replace(hangs=True) for each in held]


def _from_text(
    path: str, text: str, lists: frozenset[str], defines: Mapping[str, str], short: Mapping[str, str]
) -> ConfigFile:
    lines = split_lines(text)
    reading = _Reading(path, lists, short, _Script({**scheduled(lines), **defines}, defines, ScriptGrowth(path)))
    for number, line in enumerate(lines, 1):
        reading.line(number, line)
    reading.end()
    places = reading.places
    found = ConfigFile(path, reading.values, lambda key: places.get(key, Location(path, Span(1, 1, 1, 1))), lines)
    found.hanging, found.compared, found.loose = reading.hanging, reading.compared, reading.loose
    found.launch = True
    found.variables, found.positionals = reading.script.variables, tuple(reading.positionals.found)
    return found


class _Reading:
    """Gives the words of a script to the arguments that they belong to."""

    def __init__(self, path: str, lists: frozenset[str], short: Mapping[str, str], script: _Script) -> None:
        self.script = script
        self.positionals = Positionals()
        self.values: dict[str, Any] = {}
        self.places: dict[str, Location] = {}
        self.hanging: dict[str, str] = {}
        self.compared: dict[str, str] = {}
        self.loose: dict[str, Location] = {}
        self._path = path
        self._lists = lists
        self._short = short
        self._more: dict[str, list[str]] = {}
        """The further values of an argument that takes several."""
        self._name, self._behind = "", False

    def line(self, number: int, line: str) -> None:
        """Read the next line."""
        for word in self.script.words(number, line):
            place = Location(self._path, Span(word.line, word.column, word.line, word.column + len(word.text)))
            flag = _FLAG.match(self._long(word.text))
            if flag is not None:
                self._name, self._behind = flag[1], True
                self.positionals.begun = True
                self._set(flag[1], flag[2], word, place)
            elif word.text[:1] in _OPERATORS:
                self.positionals.operator(word.text)
                self._name, self._behind = "", False
            else:
                self._plain(word, place)
        if not line.rstrip().endswith("\\"):
            self._name, self._behind = "", False
            self.positionals.end()
        self.script.inside = self.positionals.begun

    def _long(self, word: str) -> str:
        """A word with the long name of an argument with one dash: ``-tp=4`` as ``--tensor-parallel-size=4``."""
        name, equals, value = word.partition("=")
        return f"--{self._short[name]}{equals}{value}" if name in self._short else word

    def end(self) -> None:
        """Join the values of the arguments that take several."""
        for name, told in self._more.items():
            self.values[name] = " ".join([self.values[name], *told])

    def _set(self, name: str, said: str | None, word: _Word, place: Location) -> None:
        """An argument; without a value it is a switch until its value comes."""
        self.values[name] = True if said is None else self.script.resolved(name, word.line, said)
        self._more.pop(name, None)
        self.places[name] = place
        self.hanging.pop(name, None)
        written = word.text.partition("=")[2] or word.text
        variable = "" if said is None else hangs_on(written, self.script.branches)
        if word.hangs or variable:
            self.hanging[name] = variable
            self.compared[name] = word.compared

    def _plain(self, word: _Word, place: Location) -> None:
        """A word that is an argument's value, one of several, or a positional one."""
        script, name, told = self.script, self._name, self.script.resolved(self._name, word.line, word.text)
        takes = bool(name) and (self.values[name] is True or name in self._lists)
        if self._behind and not takes and script.is_loose(word.text):
            self.loose.setdefault(word.text, place)
        many = word.sets or script.is_many(word.text)
        key = self.positionals.word(told, place, taken=takes and not many)
        if key:
            self._set(key, self.positionals.found[-1].said, word, place)
        elif many:
            self._name = ""
        elif takes and self.values[name] is True:
            self.values[name] = told
            if hangs_on(word.text, script.branches):
                self.hanging[name] = hangs_on(word.text, script.branches)
        elif takes:
            self._more.setdefault(name, []).append(told)


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
        if words and _RUNS_TEXT.match(words[-1][1]) and _QUOTED.fullmatch(found[0]):
            words += [(found.start() + 1 + column, word) for column, word in _plain_words(found[0][1:-1])]
            continue
        word = _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", found[0])
        if _PAIR.match(word):
            words += [(found.start() + 2 + each.start(), each[0]) for each in re.finditer(r"\S+", word)]
        else:
            words.append((found.start() + 1, word))
    return words


def _plain_words(text: str) -> list[tuple[int, str]]:
    """Words of a command that stands in quotes: ``bash -c "torchrun train.py batch_size=6"``."""
    return [
        (found.start() + 1, _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", found[0]))
        for found in _TOKEN.finditer(text)
    ]


def without_comment(line: str) -> str:
    """A line of a shell script up to its comment."""
    return re.sub(r"(?:^|\s)#.*", "", line)
