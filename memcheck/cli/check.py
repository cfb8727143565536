"""``memcheck check``: the gate."""

from __future__ import annotations

import sys

import click

from memcheck.cli.check_options import CHECK_OPTIONS, CHECK_SECTIONS
from memcheck.cli.completion import files
from memcheck.cli.options import CheckOptions
from memcheck.cli.parameters import options
from memcheck.cli.sections import SectionedCommand

SECTIONS = {heading: tuple(option.key for option in section) for heading, section in CHECK_SECTIONS}


@click.command("check", short_help="Check plans.", cls=SectionedCommand, sections=SECTIONS)
@click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=files)
@options(CHECK_OPTIONS)
def command(**given: object) -> int:
    """Check training plans: files, folders with everything below them, or - for stdin.

    A PATH may also be a framework's config or a launch script, with --gpu and --gpus-per-node. Without a PATH, check
    uses the paths of the configuration, or else the working directory. The exit code is 1 if a plan fails.
    """
    from memcheck.cli.gate import run_check

    return run_check(CheckOptions(arguments=tuple(sys.argv[1:]), **given))  # type: ignore[arg-type]
