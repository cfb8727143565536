"""Configs of frameworks in folders without a plan, and the command line that checks each."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from memcheck.config.find import CONFIG_SUFFIXES, SUFFIXES, walk
from memcheck.configs.config_file import parse_text
from memcheck.configs.detect import detect
from memcheck.configs.direct import config_document, unstated
from memcheck.configs.refusals import launch_inside
from memcheck.configs.types import ConfigError
from memcheck.edge.opener import begin_search, end_search, read_start
from memcheck.edge.toml import TomlError
from memcheck.plan.finding import Finding
from memcheck.record import Record

LAUNCHES = (".bash", ".slurm", ".sbatch")
"""Suffixes of launch scripts in addition to ``.sh``."""
MOST_FILES = 1000
"""Files that are looked at, those near the top first."""
MOST_CONFIGS = 50
"""Configs that are read as plans."""
LARGEST = 131_072
"""Bytes of a file: what is larger is data."""
ANSWERS: Mapping[str, tuple[str, object]] = {
    "hardware.gpu": ("gpu", "h100-80gb"),
    "hardware.gpus_per_node": ("gpus_per_node", 8),
    "training.sequence_length": ("sequence_length", 4096),
}
"""What a config leaves to options of ``check``, each with an example of an answer."""


class Nearby(Record):
    """Configs that were found."""

    commands: tuple[str, ...] = ()
    """A command line for each config that can be checked."""
    open: tuple[str, ...] = ()
    """Configs that leave something open which ``check`` has no option for."""
    more: bool = False
    """Whether the search ended before it had looked at everything."""


def nearby(folders: Sequence[str], stated: Mapping[str, object]) -> Nearby:
    """The configs below these folders. ``stated``: what the command line says already, by the options' fields.

    The search is bounded: at most :data:`MOST_FILES` files, of which :data:`MOST_CONFIGS` are read as plans.
    """
    suffixes = (*SUFFIXES, *CONFIG_SUFFIXES, *LAUNCHES)
    found = (each for folder in folders for each in walk(folder, suffixes, shallow_first=True) if isinstance(each, str))
    paths = list(islice(found, MOST_FILES + 1))
    commands: list[str] = []
    left_open: list[str] = []
    begin_search()
    try:
        configs = islice(_configs(paths[:MOST_FILES]), MOST_CONFIGS + 1)
        for number, (path, data) in enumerate(configs):
            if number == MOST_CONFIGS:
                return Nearby(tuple(commands), tuple(left_open), more=True)
            options = _options(path, data, stated)
            if options is None:
                left_open.append(path)
            else:
                commands.append(_command(path, {**stated, **options}))
    finally:
        end_search()
    return Nearby(tuple(commands), tuple(left_open), more=len(paths) > MOST_FILES)


def _configs(paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The files that are some framework's config."""
    for path in paths:
        name = os.path.normpath(path).replace(os.sep, "/")
        if not name.isprintable():
            continue  # no command line could be copied from the screen
        try:
            data = read_start(path, LARGEST)
            if len(data) <= LARGEST and _is_config(name, parse_text(name, data)):
                yield name, data
        except (OSError, ConfigError, TomlError):
            continue


def _is_config(path: str, text: str) -> bool:
    """Whether a text is a framework's config, or a platform's file with a launch in it."""
    return launch_inside(path, text, {}) is not None or bool(detect(path, text))


def _options(path: str, data: bytes, stated: Mapping[str, object]) -> dict[str, object] | None:
    """Examples for what a config leaves to options of ``check``; None where it leaves open something else."""
    if launch_inside(path, parse_text(path, data), {}) is not None:
        return _options_of_launch(path, data, stated)
    document = config_document(path, data, stated)
    if document is None:
        return None
    missing = unstated(document)
    answers = {option: example for key, (option, example) in ANSWERS.items() if key in missing and option not in stated}
    document = config_document(path, data, {**stated, **answers})
    return None if document is None or _fails(document.findings) else answers


def _options_of_launch(path: str, data: bytes, stated: Mapping[str, object]) -> dict[str, object] | None:
    """The fewest examples with which the launch in a platform's file can be checked."""
    asked = [answer for answer in ANSWERS.values() if answer[0] not in stated]
    for count in range(len(asked) + 1):
        answers = dict(asked[:count])
        document = config_document(path, data, {**stated, **answers})
        if document is not None and not _fails(document.findings):
            return answers
    return None


def _fails(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _command(path: str, options: Mapping[str, object]) -> str:
    """A line for a shell."""
    named = path if not path.startswith("-") else f"./{path}"
    words = ["memcheck", "check", named]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", _written(value)]
    return shlex.join(words)


def _written(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {each}" for key, each in value.items())
    return str(value)
