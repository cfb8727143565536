"""Help of a command whose options come in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

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
