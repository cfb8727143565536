"""A framework's own config as a plan: what ``check train.yml --gpu h100-80gb --gpus-per-node 8`` judges."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Any

from memcheck.configs.answers import ENGINE, FLAGS, LENGTH, STATED_LENGTH, Beside, asks, length_keys
from memcheck.configs.config_file import composed, located, parse_text
from memcheck.configs.detect import MODEL_CONFIG, MODELLESS, detect
from memcheck.configs.launch_devices import GPU
from memcheck.configs.next_command import EXAMPLE, INDENT, NO_MACHINE, command, is_meant_as_plan, seen
from memcheck.configs.plan_text import grown, spelled_out, value_at
from memcheck.configs.read_keys import proposal
from memcheck.configs.refusals import InsideLaunch, launch_inside, of_python
from memcheck.configs.sourced import sourced
from memcheck.configs.syntax import JSON, TOML, YAML, load_config, syntax_of
from memcheck.configs.trainer_parts import release_key
from memcheck.configs.trainer_split import named_files
from memcheck.configs.types import ConfigError, ElsewhereError
from memcheck.edge.opener import is_file
from memcheck.edge.toml import TomlError
from memcheck.job.training import LONGEST
from memcheck.job.types import UNPACKED
from memcheck.plan import finding as codes
from memcheck.plan.finding import Location, Span
from memcheck.plan.places import Document, Provenance
from memcheck.plan.sniff import misspells_mark
from memcheck.plan.text import read_bytes, split_lines
from memcheck.record import Record

DEFAULT_LENGTH = "default_sequence_length"
"""The length of configs that state none, of a project's configuration."""
MODEL = "model"
SERVES = frozenset({"max-model-len", "tensor-parallel-size", "gpu-memory-utilization", "max-num-seqs", "enforce-eager"})
"""Options of vLLM: with two of them and a model, a file of a team's own is the config of a server."""
HALF = (MODELLESS, MODEL_CONFIG, "a nanotron config without a model")
"""Kinds of files that a team's own file may look like by some of its keys."""
CONFIGURED = "[[configs]] in memcheck.toml, [[tool.memcheck.configs]] in pyproject.toml"
OTHERS = ("images", "framework_version", "settings", "defines", "format", DEFAULT_LENGTH)
"""Values stated in addition to a config that are not options of a single key (``FLAGS``)."""


def config_document(path: str, data: bytes, stated: Mapping[str, object]) -> Document | None:
    """The document that a config stands for; None for a YAML file that no framework's reader knows.

    ``stated``: options of one key by their names (``FLAGS``), and :data:`OTHERS`: ``images`` of a job that trains on
    pictures, the ``framework_version`` whose defaults count, ``settings`` by dotted key, ``defines`` of a script's
    variables, the ``format`` of a file that does not prove it.
    Never raises for bad input.
    """
    try:
        text = parse_text(path, data)
    except ConfigError as error:
        error = of_python(path, "", stated) or error
        return None if path.lower().endswith((".yaml", ".yml")) else _failed(path, "", error)
    launch = launch_inside(path, text, stated)
    found = None if launch is None else _of_launch(path, text, launch, stated)
    return _of_text(path, text, stated, Location(path, Span(1, 1, 1, 1))) if found is None else found


def _of_launch(path: str, text: str, launch: InsideLaunch, stated: Mapping[str, object]) -> Document | None:
    """The document of the launch in a wrapper, with the GPUs that the wrapper asks for.

    None where no reader takes it, or where it has errors and nothing says the GPU: then the launch itself is named.
    """
    machine, at = launch.machine, launch.location
    lines = list(split_lines(text))
    for number, line in enumerate(launch.text.split("\n")):
        if line and 0 < number < len(lines):
            lines[number] = line  # as it is read: with its arguments in one line, and variables filled in
    taken: Document | None = None
    for counted in (machine.stated(stated), machine._replace(gpus_per_node=0, nodes=1).stated(stated)):
        found = _of_text(path, launch.text, {**launch.release, **stated, **counted.said}, at)
        if found is None:
            continue
        found = found._replace(sources={**found.sources, path: tuple(lines)})
        if launch.serves or not any(each.severity == "error" for each in found.findings):
            return found
        taken = taken or (found if counted.gpu and found.values is not None else None)
    return taken


def _of_text(path: str, text: str, stated: Mapping[str, object], start: Location) -> Document | None:
    """The document of a text; ``start``: where findings about the config as a whole are shown."""
    settings = stated.get("settings")
    changes: dict[str, object] = dict(settings) if isinstance(settings, dict) else {}
    stated = {**{name: changes[key] for name, key in FLAGS.items() if key in changes}, **stated}
    named = MODEL in stated or any(key.startswith("model.") for key in changes)
    source = os.path.basename(path)
    try:
        name = str(stated.get("format") or detect(path, text, named=named, beside=stated))
    except ElsewhereError as error:
        followed = _followed(path, text, error)
        if followed is None:
            return _failed(path, text, error)
        name, source = followed
        stated = {**error.said, **stated}
    except (ConfigError, TomlError) as error:
        known = isinstance(error, ConfigError) and error.location is not None and "this is" in error.message
        syntax = syntax_of(path, text)
        if known and syntax in (YAML, JSON, TOML) and any(each in error.message for each in HALF):
            proposed = _proposed(path, text, stated)
            if proposed:
                said, help = proposed
                message = f"{error.message.partition(': ')[2]}; its keys say: {said}"
                error = located(error.location or start, message, help)  # type: ignore[union-attr]
        if syntax == YAML and not known:
            return _own(path, text, stated)
        if syntax in (JSON, TOML) and isinstance(error, ConfigError) and error.location is None:
            error = _unknown(path, text, load_config(path, text, syntax).values, stated)
        return _failed(path, text, error)
    beside = Beside(
        version=str(stated.get("framework_version", "")),
        defines=_mapping(stated.get("defines")),
        images=_mapping(stated.get("images")),
        changed=frozenset({GPU, *map(spelled_out, changes)}),
    )
    values: dict[str, Any] = {"memcheck": 1, "source": {name: source}}
    options = {key: stated[flag] for flag, key in FLAGS.items() if flag in stated and key != LENGTH}
    values = grown(values, {**options, **changes})
    config = DirectConfig(format=name, start=start, text=text, values=values, beside=beside)
    found = config.read()
    more = _length(found, stated)
    if more:
        values = grown(values, {key: each for key, each in more.items() if key not in changes})
        config = config._replace(values=values)
        found = config.read()
        if value_at(found.values, "training.sequences") in UNPACKED and value_at(found.values, LONGEST) is None:
            config = config._replace(values=grown(values, {LONGEST: next(iter(more.values()))}))
            found = config.read()
    missing = [] if any(each.severity == "error" for each in found.findings) else list(_missing(found))
    findings = (*found.findings, *missing)
    if beside.images.get("per_sample", 1) and not value_at(found.values, "training.images"):
        message, help = "the job does not train on pictures, and --images was given", "leave --images out"
        unread = codes.CONFLICTING_KEYS.at(found.locate(""), message, help=help)._replace(severity="warning")
        findings = (*findings, *([unread] if beside.images and not missing else []))
    whole = not any(each.severity == "error" for each in findings)
    if whole:
        found = found._replace(values=without_source(found.values))
    return found._replace(findings=findings)


def without_source(values: object) -> object:
    """The values of a plan without the config that they were taken from."""
    return {key: each for key, each in values.items() if key != "source"} if isinstance(values, dict) else values


def _followed(path: str, text: str, error: ElsewhereError) -> tuple[str, str] | None:
    """The format of the file that a launch names, and its path from the launch's folder.

    None where no such file is there, or no format of files is recognised in it.
    """
    config = load_config(path, text, syntax_of(path, text))
    near = next((each for each in named_files(config, error.file) if is_file(each)), None)
    if near is None:
        return None
    try:
        inner = parse_text(near, read_bytes(near))
        syntax = syntax_of(near, inner)
        name = detect(near, inner) if syntax in (YAML, JSON, TOML) else ""
    except (ConfigError, TomlError, OSError):
        return None
    return (name, os.path.relpath(near, os.path.dirname(path) or ".").replace(os.sep, "/")) if name else None


class DirectConfig(Record):
    """A framework's own config, and what was stated in addition to it."""

    format: str
    """The name of its format."""
    start: Location
    """Where findings about the config as a whole are shown."""
    text: str
    values: dict[str, Any]
    """The plan that is stated: nested values, with the config as its ``source``."""
    beside: Beside

    def read(self) -> Document:
        """The document of the stated values, with what the config says."""
        path, data, marks = self.start.path, self.text.encode(), {"": Provenance(None, self.start)}
        lines = {path: split_lines(self.text)}
        bare = Document(path=path, index=0, values=self.values, marks=marks, sources=lines, config=self)
        found = sourced(bare, lambda each: data if each == path else read_bytes(each), self.beside, direct=True)
        if self.beside.version and isinstance(found.values, dict):
            key = release_key(self.format, self.beside.version, value_at(found.values, "training.framework"))
            if value_at(found.values, key) is None:
                found = found._replace(values=grown(found.values, {key: self.beside.version}))
        return found

    def changed(self, instead: Mapping[str, object], stated: Mapping[str, object]) -> Document:
        """The document with other values: ``instead`` by keys of the config, ``stated`` by keys of the plan."""
        said = frozenset(spelled_out(key) for key in stated)
        beside = self.beside._replace(instead=instead, changed=self.beside.changed | said)
        values = grown(self.values, dict(stated))
        found = self._replace(values=values, beside=beside).read()
        return found._replace(values=without_source(found.values))


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def unstated(document: Document) -> frozenset[str]:
    """The keys of :data:`ASKS` that neither a config nor the command line states."""
    return frozenset(key for key, _, _ in asks(serves=_serves(document)) if value_at(document.values, key) is None)


def _serves(document: Document) -> bool:
    return value_at(document.values, ENGINE) is not None


def _length(document: Document, stated: Mapping[str, object]) -> dict[str, object]:
    """The keys of a plan that take a stated length: of rows that are not packed, the config's own is only the limit.

    That of a project's configuration is for configs that state none.
    """
    length = stated.get(STATED_LENGTH)
    if _serves(document):
        return {}
    if length is not None:
        return length_keys(document.values, length)
    usual = stated.get(DEFAULT_LENGTH)
    return {LENGTH: usual} if usual is not None and value_at(document.values, LENGTH) is None else {}


def _own(path: str, text: str, stated: Mapping[str, object]) -> Document | None:
    """The failed document of a YAML file that is no known framework's config, such as a team's own file.

    None for a plan without its mark, and for YAML that is no mapping: the plan's reader reports what is wrong there.
    """
    try:
        values = composed(path, text).values
    except ConfigError:
        return None
    if not isinstance(values, dict) or is_meant_as_plan(values) or misspells_mark(text.encode()):
        return None
    document = _failed(path, text, _unknown(path, text, values, stated))
    (finding,) = document.findings
    return document._replace(findings=(codes.INVALID_PLAN.at(finding.location, finding.message, help=finding.help),))


def _unknown(path: str, text: str, values: Mapping[str, object], stated: Mapping[str, object]) -> ConfigError:
    """The error for a file whose keys are a team's own."""
    if values.get(MODEL) and len(SERVES & {str(key).replace("_", "-") for key in values}) > 1:
        message = "this is a config file of `vllm serve --config`, which memcheck does not read"
        help = "check the server's line, with these values as its options:\n"
        help += f"{INDENT}memcheck check --gpu {stated.get('gpu') or EXAMPLE} -- {_served(values)}"
        return located(Location(path, Span(1, 1, 1, 2)), message, help)
    message = "this is no plan and no config that memcheck knows"
    proposed = _proposed(path, text, stated)
    if proposed:
        said, command = proposed
        return located(Location(path, Span(1, 1, 1, 2)), f"{message}; its keys say: {said}", command)
    return located(Location(path, Span(1, 1, 1, 2)), message, seen(values).way_on(stated))


def _proposed(path: str, text: str, stated: Mapping[str, object]) -> tuple[str, str] | None:
    """What the usual names of a file say, and the command that takes them; None where they say too little."""
    config = load_config(path, text, syntax_of(path, text))
    said, options = proposal(config)
    if not said:
        return None
    machine = NO_MACHINE.stated(stated)
    known = {f"--{name.replace('_', '-')}" for name in stated}
    asked = [word for each in options if each.split(" ")[0] not in known for word in each.split(" ")]
    intro = f"take them so{machine.advice}" + (" and with your own answers" if asked else "")
    return said, command(intro, "memcheck", "estimate", path, "--from", "keys", *machine.flags(), *asked)


def _served(values: Mapping[str, object]) -> str:
    """The line of the server with the values of its config file, as vLLM reads it: what is false is left out."""
    words = ["vllm", "serve", str(values[MODEL])]
    for key, value in list(values.items())[:100]:
        if key != MODEL and value is not False:
            words += [f"--{key}", *([] if value is True else map(str, value if isinstance(value, list) else [value]))]
    return shlex.join(words)


def _missing(document: Document) -> list[Any]:
    """A finding for each required value that neither the config nor the command line states."""
    at, keys = document.locate(""), unstated(document)
    return [
        codes.UNUSABLE_SOURCE.at(
            at, f"the config does not say {what}", help=f"{help}, or {CONFIGURED}" if key == GPU else help
        )
        for key, what, help in asks(serves=_serves(document))
        if key in keys
    ]


def _failed(path: str, text: str, error: ConfigError | TomlError) -> Document:
    """A document with nothing but the reason why it cannot be read."""
    start = Location(path, Span(1, 1, 1, 1))
    at, message, help = start, str(error), ""
    if isinstance(error, ConfigError):
        at, message, help = error.location or start, error.message, error.help
        prefix = f"{at.path}:{at.span.line}:{at.span.column}: "
        message = message.removeprefix(prefix).removeprefix(f"{path}: ")
    finding = codes.UNUSABLE_SOURCE.at(at, message, help=help)
    return Document(
        path=path,
        index=0,
        values=None,
        marks={"": Provenance(None, start)},
        sources={path: split_lines(text)},
        findings=(finding,),
    )
