"""A framework's own config as a plan: what ``check train.yml --gpu h100-80gb --gpus-per-node 8`` judges."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from memcheck.configs.config_file import composed, located, parse_text
from memcheck.configs.detect import detect
from memcheck.configs.leaves import grown
from memcheck.configs.own_yaml import is_meant_as_plan, seen
from memcheck.configs.refusals import launch_inside
from memcheck.configs.release import release_key
from memcheck.configs.sourced import sourced
from memcheck.configs.syntax import JSON, TOML, YAML, load_config, syntax_of
from memcheck.configs.types import ConfigError
from memcheck.edge.toml import TomlError
from memcheck.finding import Location, Span
from memcheck.job.rows import LONGEST, UNPACKED
from memcheck.plan import codes
from memcheck.plan.document import Document, Provenance
from memcheck.plan.text import read_bytes, split_lines
from memcheck.plan.unmarked import misspells_mark

STATED = "stated beside the config"
LENGTH, IMAGES, MODEL, RELEASE, SETTINGS = "sequence_length", "images", "model", "framework_version", "settings"
NEEDED = (
    ("hardware.gpu", "which GPU it runs on", "name it: --gpu h100-80gb, or [[tool.memcheck.configs]] in the project"),
    ("hardware.gpus_per_node", "how many GPUs run it", "state them: --gpus-per-node 8, and --nodes for more than one"),
    ("training.sequence_length", "how long a sequence is", "state the longest row: --sequence-length 4096"),
    ("training.micro_batch_size", "how many sequences a GPU takes at once", "a plan states it beside `source:`"),
    ("model", "which model it trains", "a plan states it beside `source:`, or `memcheck estimate --model`"),
)
"""What has to be known, and who says it where the config does not."""


def config_document(path: str, data: bytes, stated: Mapping[str, object]) -> Document | None:
    """The document that a config stands for; None for a YAML file that no framework's reader knows.

    ``stated``: ``gpu``, ``gpus_per_node``, ``nodes``, the ``sequence_length`` of a config that does not say it, the
    ``images`` of one that trains on pictures, the ``model`` of one that names none, or a folder, the
    ``framework_version`` whose defaults count, and the ``settings``, by dotted key, that answer what the config leaves
    open.
    Never raises for bad input.
    """
    try:
        text = parse_text(path, data)
    except ConfigError as error:
        return None if path.lower().endswith((".yaml", ".yml")) else _failed(path, "", error)
    launch = launch_inside(path, text)
    if launch is not None:
        machine, at = launch.machine, launch.location
        lines = list(split_lines(text))
        lines[at.span.line - 1] = launch.words  # as it is read: with its arguments in one line, and variables filled in
        for counted in (machine.stated(stated), machine._replace(gpus_per_node=0, nodes=1).stated(stated)):
            found = _of_text(path, launch.text, {**stated, **counted.said}, at)
            if found is not None and not any(each.severity == "error" for each in found.findings):
                return found._replace(sources={**found.sources, path: tuple(lines)})
    return _of_text(path, text, stated, Location(path, Span(1, 1, 1, 1)))


def _of_text(path: str, text: str, stated: Mapping[str, object], start: Location) -> Document | None:
    """The document of a text; ``start``: where findings about the config as a whole are shown."""
    data = text.encode()
    try:
        name = detect(path, text, named=MODEL in stated, beside=stated)
    except (ConfigError, TomlError) as error:
        known = isinstance(error, ConfigError) and error.location is not None and "this is" in error.message
        syntax = syntax_of(path, text)
        if syntax == YAML and not known:
            return _own(path, text, stated)
        if syntax in (JSON, TOML) and isinstance(error, ConfigError) and error.location is None:
            error = _unknown(path, load_config(path, text, syntax).values, stated)
        return _failed(path, text, error)
    lines = split_lines(text)
    images = stated.get(IMAGES)
    pictures = images if isinstance(images, dict) else {}
    values: dict[str, Any] = {"memcheck": 1, "source": {name: os.path.basename(path)}}
    beside = (LENGTH, IMAGES, MODEL, RELEASE, SETTINGS)
    hardware = {key: value for key, value in stated.items() if key not in beside}
    if hardware:
        values["hardware"] = hardware
    if MODEL in stated:
        values[MODEL] = stated[MODEL]
    if RELEASE in stated:
        release = str(stated[RELEASE])
        values = grown(values, {release_key(name, release): release})

    def read() -> Document:
        bare = Document(path=path, index=0, values=values, marks={"": Provenance(None, start)}, sources={path: lines})
        return sourced(bare, lambda each: data if each == path else read_bytes(each), pictures, direct=True)

    found = read()
    if LENGTH in stated:
        values = grown(values, _length(found, stated[LENGTH]))
        found = read()
        if _value(found, "training.sequences") in UNPACKED and _value(found, LONGEST) is None:
            values = grown(values, {LONGEST: stated[LENGTH]})
            found = read()
    settings = stated.get(SETTINGS)
    if isinstance(settings, dict) and any(each.severity == "error" for each in found.findings):
        values = grown(values, {key: each for key, each in settings.items() if _value(found, key) is None})
        found = read()
    missing = [] if any(each.severity == "error" for each in found.findings) else list(_missing(found))
    findings = (*found.findings, *missing)
    whole = not any(each.severity == "error" for each in findings)
    if whole and isinstance(found.values, dict):
        found = found._replace(values={key: each for key, each in found.values.items() if key != "source"})
    return found._replace(findings=findings)


def unstated(document: Document) -> frozenset[str]:
    """The keys of :data:`NEEDED` that neither a config nor the command line states."""
    return frozenset(key for key, _, _ in NEEDED if _value(document, key) is None)


def _length(document: Document, stated: object) -> dict[str, object]:
    """The keys of a plan that take a stated length: of rows that are not packed, the config's own is only the limit."""
    limit = _value(document, f"training.{LENGTH}")
    unpacked = _value(document, "training.sequences") in UNPACKED
    if unpacked and isinstance(limit, int) and isinstance(stated, int) and stated <= limit:
        return {LONGEST: stated}
    return {f"training.{LENGTH}": stated}


def _own(path: str, text: str, stated: Mapping[str, object]) -> Document | None:
    """YAML that is nobody's config: a team's own file. None for a plan without its mark, or what is no mapping: the
    plan's own reader says what is wrong with those.
    """
    try:
        values = composed(path, text).values
    except ConfigError:
        return None
    if not isinstance(values, dict) or is_meant_as_plan(values) or misspells_mark(text.encode()):
        return None
    document = _failed(path, text, _unknown(path, values, stated))
    (finding,) = document.findings
    return document._replace(findings=(codes.INVALID_PLAN.at(finding.location, finding.message, help=finding.help),))


def _unknown(path: str, values: Mapping[str, object], stated: Mapping[str, object]) -> ConfigError:
    """What is told of a file whose keys are a team's own."""
    message = "this is no plan and no config that memcheck knows"
    return located(Location(path, Span(1, 1, 1, 2)), message, seen(values).way_on(stated))


def _missing(document: Document) -> list[Any]:
    """What nobody said."""
    at, keys = document.locate(""), unstated(document)
    return [
        codes.UNUSABLE_SOURCE.at(at, f"the config does not say {what}", help=help)
        for key, what, help in NEEDED
        if key in keys
    ]


def _value(document: Document, key: str) -> object:
    table: object = document.values
    for part in key.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    return table


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
