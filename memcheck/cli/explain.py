"""``memcheck explain``: a rule's page."""

from __future__ import annotations

import sys

import click

from memcheck.cli.completion import one_of, rules
from memcheck.cli.parameters import COLOR
from memcheck.cli.terminal import screen_of
from memcheck.cli.write import write_stdout
from memcheck.errors import UsageError
from memcheck.report.page import styled


@click.command("explain")
@click.argument("rule", metavar="CODE|NAME", shell_complete=one_of(rules))
@COLOR
def command(rule: str, color: str) -> int:
    """Explain a rule: what it does, why, an example, how to fix it."""
    from memcheck.rules.registry import RULES

    wanted = rule.lower()
    for known in RULES:
        if wanted in (known.code.lower(), known.name):
            write_stdout(styled(known.explain(), screen_of(sys.stdout, color)))
            return 0
    from memcheck.edge.closest import closest

    close = closest(wanted, [known.name for known in RULES])
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"no rule {rule!r}{hint}", "`memcheck list rules` shows every rule")
