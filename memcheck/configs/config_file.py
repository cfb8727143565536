"""A framework's config as flat keys with their places, and the evidence that proves whose it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from memcheck.configs.shell_documents import Positional, ScriptFile, filled, plain
from memcheck.configs.types import ConfigError
from memcheck.edge.libyaml import yaml
from memcheck.edge.toml import TomlError, parse_toml
from memcheck.plan.compose import Composed, ComposeError, Composer
from memcheck.plan.finding import Location, Span
from memcheck.plan.places import Marks, escape
from memcheck.plan.read import syntax_finding
from memcheck.plan.text import decode, read_bytes, split_lines

NO_IMAGES: Mapping[str, int] = {}
_TABLE = re.compile(r"\s*\[\[?\s*([^\]\s]+)\s*\]")
_ASSIGNMENT = re.compile(r"\s*([\w.\"'-]+)\s*=\s*")


class ConfigFile:
    """One config. Keys are dotted paths to scalars and lists."""

    def __init__(
        self, path: str, values: dict[str, object], locate: Callable[[str], Location], lines: tuple[str, ...]
    ) -> None:
        self.path = path
        self.values = values
        self.lines = lines
        self.inside = ""
        """The folder within which the config may name other files; empty: any."""
        self.read: Callable[[str], bytes] = read_bytes
        """How the files that the config names are read."""
        self.hanging: dict[str, str] = {}
        """Arguments of a script that hang on an ``if``, and the variable that does; empty for the argument itself."""
        self.compared: dict[str, str] = {}
        """The variable that such an ``if`` compares; empty where that is not plain."""
        self.loose: dict[str, Location] = {}
        """Variables after an argument that may hold further arguments, and that the script does not set."""
        self.launch = False
        """Whether the config is a command line or a script, and not a file of keys."""
        self.positionals: tuple[Positional, ...] = ()
        """Words of a script's commands that are neither an option nor an option's value; overrides are among them."""
        self.variables: Mapping[str, str] = {}
        """What a script sets its variables to, last."""
        self.documents: Mapping[str, ScriptFile] = {}
        """Files that a script writes itself, by the name that it gives them."""
        self.version = ""
        """Releases that were stated, of a trainer and of its framework: defaults moved under unchanged files."""
        self.gpus_per_node: int | None = None
        """How many GPUs a node has, where it was stated."""
        self.method = ""
        """The plan's ``training.method``, where the user stated it in addition to the config; else empty."""
        self.text = ""
        """The whole text of a Python file or a notebook; empty for any other config."""
        self.gpu = ""
        """The GPU, where it was stated."""
        self.stated: frozenset[str] = frozenset()
        """The keys of a plan that the user states in addition to the config."""
        self.instead: Mapping[str, object] = {}
        """Keys that are read as if they had these values, of a Python file, whose keys its reader finds."""
        self.images = NO_IMAGES
        """The pictures of a sample, where they were stated: keys of ``training.images``."""
        self._locate = locate
        self._adopted: dict[str, Location] = {}
        self._read: set[str] = set()

    def adopt(self, key: str, value: object, at: Location) -> None:
        """A key of a file that this one names, shown where it is named."""
        self.values[key] = value
        self._adopted[key] = at

    def change(self, values: Mapping[str, object]) -> None:
        """Give keys other values, as if the file said them; a Python file's are changed when its reader has them."""
        self.instead = values
        for key, value in values.items() if not self.text else ():
            dashed = key.replace("_", "-")
            name = dashed if dashed in self.values and key not in self.values else key
            self.adopt(name, value, self.at(name))

    def rename(self, key: str, plain: str) -> None:
        """Move the value of ``key`` to the key ``plain``, of which ``key`` is another spelling."""
        at = self.at(key)
        self.adopt(plain, self.values.pop(key), at)

    def take(self, key: str) -> object:
        """The value of a key, now read; None when the config is silent."""
        self._read.add(key)
        return self.values.get(key)

    def see(self, *keys: str) -> None:
        """Count these keys as read, so that they are not listed as unknown."""
        self._read.update(keys)

    def has(self, key: str) -> bool:
        """Whether the config says anything about a key; an explicit null says nothing."""
        return self.values.get(key) is not None

    def written(self, name: str) -> str:
        """The text of a file that the script writes itself; empty where it writes none of this name."""
        found = self.documents.get(plain(name))
        return "" if found is None else filled(found, self.variables)

    def section(self, name: str) -> bool:
        """Whether any key lies below a dotted path."""
        return any(key.startswith(f"{name}.") for key in self.values)

    def at(self, key: str) -> Location:
        """Where a key stands; where the config starts when it does not stand there."""
        if key not in self.values:
            return Location(self.path, Span(1, 1, 1, 1))
        return self._adopted[key] if key in self._adopted else self._locate(key)

    def unread(self) -> Iterator[str]:
        """Keys that no reader has asked for, in the order of the file."""
        return (key for key in self.values if key not in self._read)


def shown(config: ConfigFile, key: str) -> str:
    """A key as the comments of a plan name it: ``train.toml:12 training.seq_len``."""
    at = config.at(key)
    return f"{at.path}:{at.span.line} {key}"


def parse_text(path: str, data: bytes) -> str:
    """The text of a config.

    Raises:
        ConfigError: not UTF-8, or larger than any config.
    """
    text, finding = decode(path, data)
    if finding is not None:
        raise located(finding.location, finding.message, finding.help)
    return text


def located(at: Location, message: str, help: str = "") -> ConfigError:
    """An error at a place."""
    return ConfigError(f"{at.path}:{at.span.line}:{at.span.column}: {message}", help, at)


def load_json(path: str, text: str) -> ConfigFile:
    """A JSON object.

    Raises:
        ConfigError: no JSON, or no object.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        at = Location(path, Span(error.lineno, error.colno, error.lineno, error.colno + 1))
        raise located(at, f"not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise located(Location(path, Span(1, 1, 1, 1)), f"not JSON: {error}") from None
    return _file(path, text, values, "a JSON object", _yaml_places(path, text))


def load_yaml(path: str, text: str) -> ConfigFile:
    """A YAML mapping.

    Raises:
        ConfigError: no YAML, several documents, or no mapping.
    """
    found = composed(path, text)
    marks = Marks(path, found.root, {path: split_lines(text)})
    return _file(path, text, found.values, "a YAML mapping", _marked(path, marks))


def load_python(path: str, text: str, defines: Mapping[str, str]) -> ConfigFile:
    """A Python file or a notebook, whose keys its reader finds: here only its text, and what the user states for it."""
    config = ConfigFile(path, {}, lambda _: Location(path, Span(1, 1, 1, 1)), split_lines(text))
    config.text, config.variables = text, defines
    return config


def load_toml(path: str, text: str) -> ConfigFile:
    """A TOML document.

    Raises:
        ConfigError: no TOML, or more than its bounds.
    """
    try:
        values = parse_toml(text)
    except TomlError as error:
        at = Location(path, Span(error.line, error.column, error.line, error.column + 1))
        raise located(at, f"not TOML: {error.message}") from None
    return _file(path, text, values, "a TOML document", _toml_places(path, text))


def _file(path: str, text: str, values: Any, kind: str, places: Callable[[str], Location]) -> ConfigFile:
    if not isinstance(values, dict):
        raise located(Location(path, Span(1, 1, 1, 1)), f"the file is not {kind}")
    return ConfigFile(path, _bounded(path, values, places), places, split_lines(text))


MOST_PATHS = 8 * 2**20
"""Characters of all dotted paths of a config: each repeats the keys around it."""


def _bounded(path: str, values: dict[Any, Any], places: Callable[[str], Location]) -> dict[str, object]:
    """The flat keys of a config.

    Raises:
        ConfigError: their paths are too long together.
    """
    found: dict[str, object] = {}
    size = 0
    for key, value in flat(values):
        size += len(key)
        if size > MOST_PATHS:
            outer = key.partition(".")[0]
            message = f"the paths of the keys below `{outer[:40]}` and others take more than {MOST_PATHS:,} characters"
            raise located(places(outer), message, "shorten the keys, or name a config without them")
        found[key] = value
    return found


def flat(values: dict[Any, Any]) -> Iterator[tuple[str, object]]:
    """Dotted path to every scalar and list."""
    waiting = [("", iter(values.items()))]  # no recursion: what a file nests may be deeper than the stack
    while waiting:
        prefix, items = waiting[-1]
        for name, value in items:
            if isinstance(value, dict):
                waiting.append((f"{prefix}{name}.", iter(value.items())))
                break
            yield f"{prefix}{name}", value
        else:
            waiting.pop()


def composed(path: str, text: str) -> Composed:
    """The only document of a YAML text.

    Raises:
        ConfigError: no YAML, or several documents.
    """
    documents: list[Composed] = []
    try:
        documents += [each for each in Composer(text).documents() if each.values is not None]
    except (ComposeError, yaml.YAMLError) as error:
        finding = syntax_finding(path, text, split_lines(text), error)
        raise located(finding.location, f"not YAML: {finding.message}", finding.help) from None
    if len(documents) != 1:
        count = f"holds {len(documents)} YAML documents" if documents else "is empty"
        raise located(Location(path, Span(1, 1, 1, 1)), f"the file {count}", "name one config")
    return documents[0]


def _yaml_places(path: str, text: str) -> Callable[[str], Location]:
    """JSON is YAML as far as places go; where it is not, every key is at the top. Nobody asks for one of a file that is
    no config.
    """
    located: list[Callable[[str], Location]] = []

    def locate(key: str) -> Location:
        if not located:
            try:
                root = composed(path, text).root
            except ConfigError:
                root = None
            located.append(_marked(path, Marks(path, root, {path: split_lines(text)})))
        return located[0](key)

    return locate


def _marked(path: str, marks: Marks) -> Callable[[str], Location]:
    def locate(key: str) -> Location:
        pointer = "".join("/" + escape(part) for part in key.split("."))
        mark = marks.get(pointer)
        if mark is None:
            return Location(path, Span(1, 1, 1, 1))
        return mark.key or mark.value

    return locate


def _toml_places(path: str, text: str) -> Callable[[str], Location]:
    """Tables and assignments line by line: what the TOML parser has already found well-formed."""
    places: dict[str, Location] = {}
    table = ""
    for number, line in enumerate(split_lines(text), 1):
        opened = _TABLE.match(line)
        if opened is not None and "=" not in line.partition("#")[0]:
            table = f"{opened[1]}."
            continue
        assigned = _ASSIGNMENT.match(line)
        if assigned is not None:
            key = table + re.sub("[\"']", "", assigned[1])
            places.setdefault(key, Location(path, Span(number, assigned.start(1) + 1, number, len(line) + 1)))

    def locate(key: str) -> Location:
        while key not in places and "." in key:  # an inline table: the key that holds it
            key = key.rpartition(".")[0]
        return places.get(key, Location(path, Span(1, 1, 1, 1)))

    return locate


Recognise = Callable[[ConfigFile], str]
"""The key that proves it; empty when nothing does."""


def any_key(*names: str) -> Recognise:
    """A recogniser for the first key of a config that is in ``names``, or below a name that ends with a dot."""
    exact = frozenset(name for name in names if not name.endswith("."))
    below = tuple(name for name in names if name.endswith("."))

    def found(config: ConfigFile) -> str:
        return next((key for key in config.values if key in exact or key.startswith(below)), "")

    return found


def all_keys(*groups: Iterable[str]) -> Recognise:
    """One key of each group; the evidence is that of the first."""
    tests = [any_key(*group) for group in groups]

    def found(config: ConfigFile) -> str:
        keys = [test(config) for test in tests]
        return keys[0] if all(keys) else ""

    return found
