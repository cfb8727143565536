"""Commands whose help shows options in groups, and commands that take a launch line after ``--``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

AFTER_DASHES = "memcheck: after dashes"
REST = "Other"
"""The heading of options that are in no group."""


class SectionedCommand(click.Command):
    """A command whose help shows each option under the heading of its group.

    ``sections``: headings, in their order, each with the names of its parameters. What is in none comes last.
    """

    def __init__(self, *given: Any, sections: Mapping[str, tuple[str, ...]], **named: Any) -> None:
        """Take the groups; everything else is click's."""
        super().__init__(*given, **named)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One list for each group."""
        records: dict[str, tuple[str, str]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                records[parameter.name or ""] = record
        for heading, names in self.sections.items():
            rows = [records.pop(name) for name in names if name in records]
            with formatter.section(heading):
                formatter.write_dl(rows)
        with formatter.section(REST):
            formatter.write_dl(list(records.values()))


class LaunchCommand(SectionedCommand):
    """A command that takes a launch line after ``--``, which click would take for arguments like any other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note the words after the dashes."""
        if "--" in args:
            ctx.meta[AFTER_DASHES] = args[args.index("--") + 1 :]
        return super().parse_args(ctx, args)
