"""``memcheck check``: the gate."""

from __future__ import annotations

import sys

import click

from memcheck.cli.check_options import CHECK_OPTIONS, CHECK_SECTIONS
from memcheck.cli.gate import run_check
from memcheck.cli.options import CheckOptions, is_launch
from memcheck.cli.parameters import AFTER_DASHES, LaunchCommand, files, options

SECTIONS = {heading: tuple(option.key for option in section) for heading, section in CHECK_SECTIONS}


@click.command("check", short_help="Check plans.", cls=LaunchCommand, sections=SECTIONS)
@click.argument("paths", nargs=-1, metavar="[PATH]... | -- COMMAND...", shell_complete=files)
@options(CHECK_OPTIONS)
def command(paths: tuple[str, ...], **given: object) -> int:
    """Check training plans: files, folders with everything below them, or - for stdin.

    A PATH may also be a framework's config or a launch script, with --gpu and --gpus-per-node. The command that
    launches a job may stand after -- instead. Without a PATH, check uses the paths of the configuration, or else the
    working directory. The exit code is 1 if a plan fails.
    """
    after = tuple(click.get_current_context().meta.get(AFTER_DASHES, ()))
    launch = after if is_launch(after) else ()
    if launch:
        paths = paths[: len(paths) - len(launch)]
    return run_check(CheckOptions(paths=paths, launch=launch, arguments=tuple(sys.argv[1:]), **given))  # type: ignore[arg-type]
