"""``memcheck check``: the gate."""

from __future__ import annotations

import sys

import click

from memcheck.cli.check_options import CHECK_OPTIONS
from memcheck.cli.completion import files
from memcheck.cli.options import CheckOptions
from memcheck.cli.parameters import options


@click.command("check", short_help="Judge plans.")
@click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=files)
@options(CHECK_OPTIONS)
def command(**given: object) -> int:
    """Judge training plans: files, folders (searched recursively) or - for stdin.

    Without a PATH: the paths of the configuration, else the working directory. Exit code 1 if a plan fails.
    """
    from memcheck.cli.gate import run_check

    return run_check(CheckOptions(arguments=tuple(sys.argv[1:]), **given))  # type: ignore[arg-type]
