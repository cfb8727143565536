"""``memcheck check``: the gate."""

from __future__ import annotations

import sys

import click

from memcheck.cli import values
from memcheck.cli.completion import files, formats, gpus, one_of, rules
from memcheck.cli.options import CheckOptions, Output
from memcheck.cli.parameters import COLOR, gpu, typed
from memcheck.config.types import FAIL_ON
from memcheck.rules.profiles import PROFILES


@click.command("check", short_help="Judge plans.")
@click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=files)
@click.option(
    "--format",
    "outputs",
    type=typed(values.output),
    metavar="FORMAT[=FILE]",
    multiple=True,
    shell_complete=one_of(formats),
    help="full (default), concise, github, markdown, html, pdf, json, jsonl, csv, sarif, junit, gitlab, checkstyle or "
    "rdjson; =FILE writes there instead of stdout. Repeatable.",
)
@click.option("--fail-on", type=click.Choice(FAIL_ON), help="Lowest severity that fails the run [default: error].")
@click.option(
    "--fail-above",
    type=typed(values.share),
    metavar="SHARE",
    help="Fail plans above this use of the capacity: 90%.",
)
@click.option(
    "--warn-above",
    type=typed(values.share),
    metavar="SHARE",
    help="Warn about plans above this use of the capacity.",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    help="The rules that count: what may stop a merge (gate, the default), also what a reviewer asks, or all.",
)
@click.option(
    "--select",
    type=typed(values.selectors),
    metavar="RULES",
    multiple=True,
    shell_complete=one_of(rules),
    help="Only these rules, by code, prefix or name: MEM1,MEM203.",
)
@click.option(
    "--ignore",
    type=typed(values.selectors),
    metavar="RULES",
    multiple=True,
    shell_complete=one_of(rules),
    help="Not these rules.",
)
@click.option(
    "--extend-select",
    type=typed(values.selectors),
    metavar="RULES",
    multiple=True,
    shell_complete=one_of(rules),
    help="These rules too, whatever the configuration ignores.",
)
@click.option(
    "--gpu",
    type=gpu,
    metavar="NAME",
    shell_complete=one_of(gpus),
    help="Judge the plans on this GPU instead of their own.",
)
@click.option(
    "--config", metavar="FILE", shell_complete=files, help="This configuration file instead of the nearest one."
)
@click.option(
    "--config-from-ref",
    metavar="REF",
    help="Configuration and baseline as this git ref has them, not as the working tree has (for gates).",
)
@click.option(
    "--from-ref",
    metavar="REF",
    help="Judge only plans that changed against this git ref; the merge base where it is a branch.",
)
@click.option("--no-suppressions", is_flag=True, help="Comments in plans hide nothing (for gates).")
@click.option("--skip-unmarked", is_flag=True, help="Skip named files that carry no `memcheck:` key (for hooks).")
@click.option("--allow-empty", is_flag=True, help="Exit 0 if there is nothing to check.")
@click.option("--exit-zero", is_flag=True, help="Exit 0 even if plans fail.")
@click.option("--quiet", "-q", is_flag=True, help="Show only findings.")
@click.option("--statistics", is_flag=True, help="Add counts per rule and the fullest plans.")
@click.option("--color", type=COLOR, default="auto", help="Colours on stdout.")
@click.option("--stdin-filename", metavar="PATH", help="The name of what `-` reads, for messages and relative paths.")
@click.option(
    "--baseline", metavar="FILE", help="Hide what this baseline accepts; empty: none, whatever is configured."
)
@click.option("--fix", is_flag=True, help="Mend what has one right answer, then check.")
@click.option(
    "--unsafe-fixes", is_flag=True, help="With --fix or --diff: also make the first remedy of plans that fail."
)
@click.option("--diff", is_flag=True, help="Show what --fix would change, and write nothing; exit 1 if it would.")
@click.option(
    "--show-settings",
    metavar="FILE",
    shell_complete=files,
    help="Print the settings that apply to FILE, and check nothing.",
)
def command(
    outputs: tuple[Output, ...],
    select: tuple[tuple[str, ...], ...],
    ignore: tuple[tuple[str, ...], ...],
    extend_select: tuple[tuple[str, ...], ...],
    **rest: object,
) -> int:
    """Judge training plans: files, folders (searched recursively) or - for stdin.

    Without a PATH: the paths of the configuration, else the working directory. Exit code 1 if a plan fails.
    """
    from memcheck.cli.gate import run_check

    options = CheckOptions(
        outputs=outputs or (Output("full"),),
        select=sum(select, ()),
        ignore=sum(ignore, ()),
        extend_select=sum(extend_select, ()),
        arguments=tuple(sys.argv[1:]),
        **rest,  # type: ignore[arg-type]
    )
    return run_check(options)
