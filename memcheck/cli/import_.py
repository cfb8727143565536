"""``memcheck import``: a plan out of a framework's config."""

from __future__ import annotations

import os

import click

from memcheck.cli.check_options import ANSWERS, HARDWARE_ANSWERS, HARDWARE_HEADING, JOB_ANSWERS, JOB_HEADING
from memcheck.cli.init import write_new
from memcheck.cli.nothing import UnreadAnswers
from memcheck.cli.options import CheckOptions, stated_beside
from memcheck.cli.parameters import SectionedCommand, files, options
from memcheck.cli.write import complain, tell, write_document, write_stdout
from memcheck.config.find import PlanFile
from memcheck.configs.answers import FLAGS, Beside
from memcheck.configs.config_file import NO_IMAGES
from memcheck.configs.draft import LONGEST
from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ConfigError, ReadSetting
from memcheck.errors import UsageError
from memcheck.plan.finding import Location
from memcheck.plan.schema import shorten
from memcheck.plan.text import read_bytes, shown_path

SECTIONS = {
    HARDWARE_HEADING: tuple(option.key for option in HARDWARE_ANSWERS),
    JOB_HEADING: tuple(option.key for option in JOB_ANSWERS),
    "Output": ("output", "strict"),
}


@click.command("import", cls=SectionedCommand, sections=SECTIONS)
@click.argument("path", metavar="FILE", shell_complete=files)
@options(ANSWERS)
@click.option("--output", "-o", metavar="FILE", shell_complete=files, help="Write the plan there; never overwrites.")
@click.option("--strict", is_flag=True, help="Exit 1 if a key that bears on memory is not carried over.")
def command(path: str, output: str | None, strict: bool, **answers: object) -> int:
    """Read a framework's config or launch script, and write the plan (docs/reference/configs.md lists the frameworks).

    Each value has a comment with the file and line it came from. What the config cannot say is asked for; what the plan
    cannot carry is listed on stderr.
    """
    said = CheckOptions(**answers)  # type: ignore[arg-type]
    flags = stated_beside(said)
    stated = {
        key: ReadSetting(flags[name], "--" + name.replace("_", "-")) for name, key in FLAGS.items() if name in flags
    }
    stated.update((key, ReadSetting(value, "--set")) for key, value in said.settings)
    beside = Beside(version=said.framework_version or "", defines=dict(said.defines), images=said.images or NO_IMAGES)
    data, unread = _data(path), UnreadAnswers(said)
    unread.meet(PlanFile(path, data))
    try:
        imported = import_config(shown_path(path), data, stated, said.format or "", beside)
    except ConfigError as error:
        complain(error.message, error.help)
        return error.exit_code
    for note in imported.notes:
        _say("note", f"{_shown(note.location)}: {note.message}")
    for key, each in imported.assumed:
        _say("assumed", f"{key}: {shorten(str(each.value), LONGEST)} ({each.why})")
    for problem in imported.problems:
        complain(f"{_shown(problem.location)}: {problem.message}", problem.help)
    unread.settle()
    if imported.problems:
        return 1
    _write(imported, output)
    return 1 if strict and not all(each.counted for each in imported.notes) else 0


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
    write_new(output, imported.text)
    write_stdout(f"wrote {output}: check it with `memcheck check {output}`\n")


def _shown(at: Location) -> str:
    return f"{at.path}:{at.span.line}"


def _say(kind: str, message: str) -> None:
    """A line on stderr that is no error."""
    tell(f"memcheck: {kind}: {message}\n")
