"""``memcheck schema``: the JSON Schemas, as shipped."""

from __future__ import annotations

import click

from memcheck.cli.write import write_document
from memcheck.plan.schema import schema_path

SCHEMAS = ("plan", "report", "story", "suggest", "compare", "sweep", "diff", "verify", "why", "list")
"""Files of ``schemas/``: plans, two reports of ``check`` and ``estimate``, and one per command with JSON of its own."""


@click.command("schema")
@click.argument("what", type=click.Choice(SCHEMAS), default="plan")
def command(what: str) -> int:
    """Print the JSON Schema (draft-07) of plans, which editors use, of the JSON report, or of a command's JSON.

    report is what `check` and `estimate` print with `--format json`, story with `--format story`; the others have the
    name of their command.
    """
    with open(schema_path(f"{what}.schema.json"), encoding="utf-8") as file:
        write_document(file.read())
    return 0
