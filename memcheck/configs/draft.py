"""A plan in the making: what a reader has taken from a config, why, and what it could not use."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from memcheck.configs.config_file import ConfigFile, Recognise, shown
from memcheck.configs.key_table import TRAINERS, formats, key_table
from memcheck.configs.types import ConfigProblem, KeyRow, Note, ReadConfig, ReadSetting
from memcheck.edge.screen import whole_number
from memcheck.errors import closest
from memcheck.plan.schema import Schema, branches, conforms, load_schema, shorten
from memcheck.record import Record

MISSING = object()
MOST_MISSPELLED = 20
"""Unknown keys of a config that are compared with the known ones."""
LONGEST = 100
"""Characters of a value that a message quotes."""
MOST_SAID = 50
"""Notes, and problems, of one config. Every plan that takes it as its source has them."""
_VARIABLE = re.compile(r"\$(?:\(\([^$A-Za-z_]*\$?\{?([A-Za-z_]\w*)|\{?(\w+))")
_LONG_VALUE = re.compile(rf"`([^`]{{{LONGEST + 1},}})`")


class Reader(Record):
    """How the configs of one format are recognised and read: ``READER`` of the format's module."""

    recognise: Recognise
    """Gives the key that proves a config to be of the format; no key, no config."""
    read: Callable[[ConfigFile, int | None], ReadConfig]
    """Gives the config in the plan's words; the number is that of the GPUs, where it is known."""
    lists: frozenset[str] = frozenset()
    """Arguments of a command line that take several words."""
    short: Mapping[str, str] = {}
    """The long names of arguments of a command line that have one dash."""
    trains: Callable[[str], str] | None = None
    """Gives a script without the commands that train nothing; None: all commands are read."""


class Draft:
    """Collects the settings of one config."""

    def __init__(self, config: ConfigFile, format: str, title: str) -> None:
        self.config = config
        self.format = format
        self.title = title
        self.settings: dict[str, ReadSetting] = {}
        self.notes: list[Note] = []
        self.problems: list[ConfigProblem] = []
        self.sources: dict[str, tuple[str, ...]] = {config.path: config.lines}
        self.engine_precision: ReadSetting | None = None
        """What the file of an engine says of the precision: the trainer's arguments go before it."""
        self.engine_batch: dict[str, ReadSetting] = {}
        """What the file of an engine says of micro-batch and accumulation."""

    def set(self, key: str, value: object, path: str) -> None:
        """A value that the config states; where it has no such key, one that its framework decides."""
        self.config.see(path)
        if path not in self.config.values:
            self.assume(key, value)
            return
        self.settings[key] = ReadSetting(value, shown(self.config, path), self.config.at(path))

    def derive(self, key: str, value: object, why: str) -> None:
        """A value that follows from what the config is."""
        self.settings[key] = ReadSetting(value, why)

    def assume(self, key: str, value: object, why: str = "") -> None:
        """A value that the config leaves to its framework."""
        why = why or f"not in the config: {self.title}'s default"
        self.settings[key] = ReadSetting(value, why, assumed=True)

    def note(self, path: str, message: str) -> None:
        """Something that the plan does not carry."""
        self.config.see(path)
        self.notes.append(Note(self.config.at(path), f"`{path}`: {message}"))

    def refuse(self, path: str, message: str, help: str = "", keys: tuple[str, ...] = ()) -> None:
        """Something without which, or with which, there can be no plan."""
        self.config.see(path)
        self.problems.append(ConfigProblem(self.config.at(path), message, help, keys=keys))

    def ask(self, key: str, what: str, help: str) -> None:
        """A value that nothing in this config can say."""
        if key not in self.settings and not any(key in each.keys for each in self.problems):
            self.problems.append(
                ConfigProblem(self.config.at(""), f"the config does not say {what}", help, keys=(key,))
            )

    def value(self, key: str) -> object:
        """What was found for a plan key."""
        setting = self.settings.get(key)
        return None if setting is None else setting.value

    def whole(self, path: str, *keys: str) -> int | None:
        """An integer of the config for code that combines several; settled by the plan keys when it cannot be read."""
        written = self.config.take(path)
        if written is None or self.unset(path, written, *keys):
            return None
        value = converted(KeyRow(path, "", "whole"), written)
        if isinstance(value, int):
            return value
        self.refuse(path, f"`{path}: {written}` is not a whole number", "write the number", keys)
        return None

    def rows(self, rows: Iterable[KeyRow]) -> None:
        """Every key that stands for exactly one key of the plan."""
        for row in rows:
            names = [name for name in (row.path, *row.aliases) if self.config.has(name)]
            self.config.see(row.path, *row.aliases)
            if not names:
                if row.default is not None:
                    self.assume(row.key, row.default)
                continue
            self._row(row, names[0])

    def _row(self, row: KeyRow, path: str) -> None:
        written = self.config.take(path)
        if self.unset(path, written, row.key):
            return
        value = converted(row, written)
        if value is not MISSING:
            self.set(row.key, value, path)
            return
        known = f"; known: {', '.join(row.words)}" if row.words else ""
        help = f"state it: --set {row.key}=VALUE"
        self.refuse(path, f"`{path}: {written}` has no counterpart in a plan{known}", help, (row.key,))

    def irrelevant(self, groups: Mapping[str, Iterable[str]]) -> None:
        """Keys that do not move memory, by the reason; a name that ends with a dot stands for everything below it."""
        for names in groups.values():
            listed = tuple(names)
            self.harmless(listed, tuple(name for name in listed if name.endswith(".")))

    def unset(self, path: str, written: object, *keys: str) -> bool:
        """Whether a value is a variable that the script does not set; then that is said."""
        found = _VARIABLE.match(written) if isinstance(written, str) else None
        if found is None:
            return False
        self.config.see(path)
        message = f"`{path}`: `{written}` is not set in the script"
        variable = found[1] or found[2]
        help = f"say what its caller does: --define {variable}=8"
        self.problems.append(
            ConfigProblem(location=self.config.at(path), message=message, help=help, keys=keys, cause=variable)
        )
        return True

    def harmless(self, exact: Iterable[str], prefixes: Iterable[str] = ()) -> None:
        """Keys that do not move memory."""
        below = tuple(prefixes)
        found = [*exact, *(key for key in self.config.unread() if below and key.startswith(below))]
        self.config.see(*found)
        for key in found:
            self.config.hanging.pop(key, None)

    def unmodelled(self, reasons: Mapping[str, tuple[object, str]]) -> None:
        """Keys that move memory and have no place in a plan: a note, unless they are at their default."""
        for path, (default, reason) in reasons.items():
            below = [key for key in self.config.values if key == path or key.startswith(f"{path}.")]
            self.config.see(*below)
            live = [key for key in below if not _as_default(self.config.values[key], default)]
            switches = [self.config.values[key] for key in below if key.endswith(".enabled")]
            if live and (not switches or any(switches)):
                self.note(live[0] if path not in live else path, reason)

    def _known_keys(self) -> tuple[str, ...]:
        """Keys that a misspelled one may stand for: the format's, and of trainers TrainingArguments, too."""
        if self.format not in formats():
            return ()
        own = key_table(self.format)
        shared = key_table("transformers")
        trains = self.format in TRAINERS
        said = tuple(word for each in own.written.values() if isinstance(each, str) for word in each.split())
        return own.keys() + said + ((*shared.keys(), *shared.as_set("training_arguments")) if trains else ())

    def finish(self) -> ReadConfig:
        """The reading. Keys that no reader has asked for are listed in its notes."""
        unread = set(self.config.unread())
        for key in unread:
            self.config.hanging.pop(key, None)  # it is told as what it is, whichever branch runs
        known = self._known_keys() if unread else ()
        for number, key in enumerate(list(self.config.unread())):
            if self.config.has(key):
                close = closest(key, known, cutoff=0.8) if number < MOST_MISSPELLED else []
                meant = f"; did you mean `{close[0]}`?" if close else ""
                self.note(key, f"not a key that memcheck knows of {self.title}{meant}")
        for word, at in self.config.loose.items():
            self.notes.append(Note(at, f"`{word}`: the script does not set it, and arguments in it are not read"))
        for key, variable in self.config.hanging.items():
            what = f"`${variable}` is set" if variable else "the argument stands"
            told = variable or self.config.compared.get(key, "")
            help = f"say which it is: --define {told}=VALUE" if told else "name a script for each case"
            self.refuse(key, f"`{key}`: {what} in an `if` of the script, and which branch runs is not known", help)
        start = self.config.at("")
        places = [each.location for each in self.settings.values()] + [each.location for each in self.problems]
        left_open = "auto" in self.config.values.values()
        if not left_open and all(place in (None, start) for place in places):
            self.refuse("", f"nothing in this config says how much memory it takes: is it {self.title}'s?")
        return ReadConfig(
            format=self.format,
            settings=self.settings,
            notes=_first([each._replace(message=clipped(each.message)) for each in self.notes]),
            problems=_first([each._replace(message=clipped(each.message)) for each in self.problems]),
            sources=self.sources,
        )


_Said = TypeVar("_Said", Note, ConfigProblem)


def _first(said: list[_Said]) -> tuple[_Said, ...]:
    """The first notes, or problems, of a config. The last of them counts those that follow."""
    first, more = said[:MOST_SAID], len(said) - MOST_SAID
    if more > 0:
        first[-1] = first[-1]._replace(message=f"{first[-1].message}; and {more:,} more like it")
    return tuple(first)


def clipped(message: str) -> str:
    """A message with its quoted values cut: the whole values are at the place that the message names."""
    return _LONG_VALUE.sub(lambda found: f"`{shorten(found[1], LONGEST)}`", message)


def _as_default(written: object, default: object) -> bool:
    """Whether a key says no more than its default; a command line writes switches as words."""
    if written in (None, default):
        return True
    if isinstance(default, bool):
        return _FLAGS.get(str(written).lower()) is default
    return isinstance(default, (int, float)) and _number(written, "number") == default


def converted(row: KeyRow, written: object) -> object:
    """A value of the config as the plan has it; MISSING when it cannot be one."""
    text = str(written)
    if row.kind == "word":
        by_case = {word.lower(): value for word, value in row.words.items()}
        return by_case.get(text.lower(), MISSING)
    if row.kind == "flag":
        return _FLAGS.get(text.lower(), MISSING)
    if row.kind == "list":
        items = written if isinstance(written, list) else text.strip("[]").replace(",", " ").split()
        numbers = [whole_number(item) if isinstance(item, str) else None for item in items]
        return [item if number is None else number for item, number in zip(items, numbers, strict=True)]
    if row.kind == "text":
        return text
    return row.words[text.lower()] if text.lower() in row.words else _number(written, row.kind)


_FLAGS = {"true": True, "false": False, "1": True, "0": False}


def _number(written: object, kind: str) -> object:
    """JSON and YAML write integers as ``5e8``, too, and argument lists write text."""
    if isinstance(written, bool) or not isinstance(written, (int, float, str)):
        return MISSING
    try:
        number = float(written)
    except ValueError:
        return MISSING
    if math.isfinite(number) and number.is_integer():
        return int(number)
    return number if math.isfinite(number) and kind == "number" else MISSING


ANY = object()


def speaks(key: str, value: object = ANY) -> bool:
    """Whether a plan has a dotted key, and takes this value for it."""
    root = load_schema()
    places: list[Schema] = [root]
    for name in key.split("."):
        below = [found["properties"][name] for found in places if name in found.get("properties", ())]
        open_ends = [found for found in places if found.get("additionalProperties", True) and "properties" not in found]
        places = [branch for schema in below for branch in branches(schema, root)]
        if not places:
            return bool(open_ends)
    return value is ANY or any(conforms(value, schema, root) for schema in places)
