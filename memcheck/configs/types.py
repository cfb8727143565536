"""What is read from a framework's config, and what is written to one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memcheck.errors import MemcheckError
from memcheck.plan.finding import Location
from memcheck.record import Record

MOST_PLACES = 3
"""Other places of one cause that a message names."""
COMMAND = "<command>"
"""What messages call a command line that was given instead of a file."""
JOB = "job"
"""The variable by which the user says which job of a Python file is meant: the line of its trainer."""
NO_DEFINES: Mapping[str, str] = {}
NO_TEXTS: Mapping[str, bytes] = {}
REMOVED = object()
"""In place of a value: the config shall not have the key."""


class ConfigError(MemcheckError):
    """A framework config that cannot be read at all."""

    exit_code = 1

    def __init__(self, message: str, help: str = "", location: Location | None = None) -> None:
        super().__init__(message, help)
        self.location = location
        """Where in the config; None: the file as a whole."""


class ElsewhereError(ConfigError):
    """A launch whose arguments are in another file, which it names."""

    def __init__(self, message: str, help: str, location: Location, file: str, said: Mapping[str, object]) -> None:
        super().__init__(message, help, location)
        self.file = file
        """The file as the launch names it."""
        self.said = said
        """The GPUs and nodes that the launch states, by the names of the command line."""


class KeyRow(Record):
    """One key of a framework, and the plan's key for the same thing. Reader and writer share it."""

    path: str
    """Dotted path in the framework's config."""
    key: str
    """Dotted key of the plan."""
    kind: str = "whole"
    """``whole`` | ``number`` | ``flag`` | ``word`` | ``text`` | ``list``."""
    words: Mapping[str, object] = {}
    """The framework's words and what the plan says instead; the first word of a value is the one that is written."""
    default: object = None
    """What the framework takes where its config is silent, in the plan's words; None: the plan stays silent, too."""
    aliases: tuple[str, ...] = ()
    """Other names that the framework has for it, or had."""


class AdapterKeys(Record):
    """What a format calls the arguments of LoRA, and what its framework takes where a config is silent."""

    rank: str
    targets: tuple[str, ...]
    """Keys of the target modules; the first one that has a value counts."""
    dropout: str
    saved: str
    """The key of modules that are trained whole; empty where the format has none, as for the next two."""
    dora: str = ""
    parameters: str = ""
    """The key of parameters that get adapters by their names, such as stacked experts."""
    default_rank: int | None = None
    """None: a config has to state the rank, as for the next two."""
    default_targets: object = None
    default_dropout: float | None = None


class ReadSetting(Record):
    """A plan value and why it is what it is."""

    value: object
    why: str
    """Text of the comment on the value's line: the config's file, line and key, or whose default the value is."""
    location: Location | None = None
    assumed: bool = False
    """The config does not say it."""


class Note(Record):
    """Something in a config that the plan does not carry, or where a value was found that the config does not hold."""

    location: Location
    message: str
    counted: bool = False
    """The plan does carry it."""


class ConfigProblem(Record):
    """What keeps a config from becoming a plan."""

    location: Location
    message: str
    help: str = ""
    keys: tuple[str, ...] = ()
    """Plan keys that settle the problem when the user states them in addition to the config."""
    cause: str = ""
    """What several problems have in common: the variable that a script does not set."""


def told_once(problems: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    """Problems without repetition: of those with one cause the first, which names the others' places."""
    found: dict[tuple[object, ...], list[ConfigProblem]] = {}
    for each in problems:
        told = found.setdefault((each.cause,) if each.cause else (each.location, each.message), [])
        if all(other.location != each.location for other in told):
            told.append(each)
    return [_with_others(first, others) for first, *others in found.values()]


def _with_others(first: ConfigProblem, others: list[ConfigProblem]) -> ConfigProblem:
    if not others:
        return first
    named = ", ".join(each.message.partition(": ")[0] for each in others[:MOST_PLACES])
    more = f" and {len(others) - MOST_PLACES} more" if len(others) > MOST_PLACES else ""
    return first._replace(message=f"{first.message}; {named}{more} need it, too")


class ReadConfig(Record):
    """A config in the plan's words."""

    format: str
    settings: dict[str, ReadSetting]
    """The values that the config sets, by dotted plan key."""
    notes: tuple[Note, ...] = ()
    problems: tuple[ConfigProblem, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = {}
    """Path to lines of every file that was read."""


class Notice(Record):
    """A part of a plan that a written config does not hold."""

    kind: str
    """``lost``: the format cannot say it | ``elsewhere``: it is said in another file or on the command line |
    ``remark``: what the config says more than the plan."""
    key: str
    message: str


class Written(Record):
    """A framework's config, made from a plan."""

    format: str
    text: str
    notices: tuple[Notice, ...] = ()

    @property
    def lost(self) -> tuple[Notice, ...]:
        """What the format cannot say."""
        return tuple(notice for notice in self.notices if notice.kind == "lost")
