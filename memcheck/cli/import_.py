"""``memcheck import``: a plan out of a framework's config."""

from __future__ import annotations

import os

import click

from memcheck.cli import values
from memcheck.cli.completion import files, gpus, models, one_of
from memcheck.cli.guard import complain
from memcheck.cli.parameters import setting as set_option
from memcheck.cli.parameters import typed
from memcheck.cli.tell import tell
from memcheck.cli.write import write_document, write_stdout
from memcheck.configs.config_file import NO_IMAGES
from memcheck.configs.draft import LONGEST
from memcheck.configs.formats import FORMATS
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ConfigError, ReadSetting
from memcheck.errors import UsageError
from memcheck.finding import Location
from memcheck.plan.text import read_bytes, shown_path
from memcheck.plan.words import shorten

FLAGS = {
    "model": ("--model", "model"),
    "gpu": ("--gpu", "hardware.gpu"),
    "nodes": ("--nodes", "hardware.nodes"),
    "gpus_per_node": ("--gpus-per-node", "hardware.gpus_per_node"),
    "micro_batch_size": ("--micro-batch-size", "training.micro_batch_size"),
    "sequence_length": ("--sequence-length", "training.sequence_length"),
}
"""Options that state a key of the plan."""


def define(written: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, equals, value = written.partition("=")
    if not equals or not name.isidentifier():
        raise click.BadParameter(f"{written!r} is not of the form TP=8")
    return name, value


@click.command("import")
@click.argument("path", metavar="FILE", shell_complete=files)
@click.option("--from", "format", type=click.Choice(list(FORMATS)), help="Whose config it is, where that is not plain.")
@click.option("--model", metavar="NAME", shell_complete=one_of(models), help="The model, where the config names none.")
@click.option("--gpu", metavar="NAME", shell_complete=one_of(gpus), help="The GPU: no config names one.")
@click.option("--nodes", type=click.IntRange(1), help="How many nodes.")
@click.option("--gpus-per-node", type=click.IntRange(1), help="How many GPUs on each.")
@click.option("--micro-batch-size", type=click.IntRange(1), help="Sequences per GPU per forward pass.")
@click.option("--sequence-length", type=click.IntRange(1), help="Tokens per sequence.")
@click.option(
    "--images",
    type=typed(values.images),
    metavar="MAPPING",
    help="The pictures of a sample, where it trains on them: per_sample: 2, width: 1280, height: 720.",
)
@click.option(
    "--framework-version",
    type=typed(values.release),
    metavar="VERSION",
    help="The framework's release, whose defaults count [default: the newest].",
)
@click.option(
    "--define",
    "defines",
    type=define,
    metavar="NAME=VALUE",
    multiple=True,
    help="A variable that a script leaves to its caller, e.g. TP=8.",
)
@click.option(
    "--set",
    "settings",
    type=set_option,
    metavar="KEY=VALUE",
    multiple=True,
    help="State any other key of the plan, e.g. training.precision=bf16-mixed.",
)
@click.option("--output", "-o", metavar="FILE", shell_complete=files, help="Write the plan there; never overwrites.")
@click.option("--strict", is_flag=True, help="Exit 1 if a key that bears on memory is not carried over.")
def command(
    path: str,
    format: str | None,
    settings: tuple[tuple[str, object], ...],
    output: str | None,
    strict: bool,
    framework_version: str | None,
    defines: tuple[tuple[str, str], ...],
    images: dict[str, int] | None,
    **flags: object,
) -> int:
    """Read a framework's config or launch script, and write the plan (docs/import.md lists the frameworks).

    Each value has a comment with the file and line it came from. What the config cannot say is asked for; what the plan
    cannot carry is listed on stderr.
    """
    stated = {key: ReadSetting(value, "--set") for key, value in settings}
    release = framework_version or ""
    for name, (flag, key) in FLAGS.items():
        if flags[name] is not None:
            stated[key] = ReadSetting(flags[name], flag)
    try:
        imported = import_config(
            shown_path(path), _data(path), stated, format or "", release, dict(defines), images or NO_IMAGES
        )
    except ConfigError as error:
        complain(error.message, error.help)
        return error.exit_code
    for note in imported.notes:
        _say("note", f"{_shown(note.location)}: {note.message}")
    for key, each in imported.assumed:
        _say("assumed", f"{key}: {shorten(str(each.value), LONGEST)} ({each.why})")
    for problem in imported.problems:
        complain(f"{_shown(problem.location)}: {problem.message}", problem.help)
    if imported.problems:
        return 1
    _write(imported, output)
    return 1 if strict and imported.notes else 0


def _data(path: str) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _write(imported: Imported, output: str | None) -> None:
    if output is None:
        write_document(imported.text)
        return
    if os.path.lexists(output):
        raise UsageError(f"{output} exists", "name another file: import never overwrites one")
    from memcheck.cli.init import write_new

    write_new(output, imported.text)
    write_stdout(f"wrote {output}: `memcheck check {output}` judges it\n")


def _shown(at: Location) -> str:
    return f"{at.path}:{at.span.line}"


def _say(kind: str, message: str) -> None:
    """A line on stderr that is no error."""
    tell(f"memcheck: {kind}: {message}\n")
