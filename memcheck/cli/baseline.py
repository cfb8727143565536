"""``memcheck baseline``: accept today's findings; from then on plans may only get better."""

from __future__ import annotations

import os
import sys

import click

from memcheck.cli.judging import CLEAN, FINDINGS, USAGE, Gates, plan_files
from memcheck.cli.list import table
from memcheck.cli.options import CheckOptions
from memcheck.cli.parameters import COLOR, CONFIG
from memcheck.cli.replace import replace
from memcheck.cli.review.baseline import DEFAULT_FILE, AcceptedFinding, entries_of, read_entries, relative, rendered
from memcheck.cli.write import complain, screen_of, write_bug_report, write_stdout
from memcheck.config.find import Configurations
from memcheck.edge.opener import refuse_way_out
from memcheck.edge.screen import one_line, percent
from memcheck.errors import DEFECT, UsageError
from memcheck.judge import check_file
from memcheck.rules.result import PlanResult, Unreadable

FILE = click.option("--baseline", metavar="FILE", help=f"The baseline [default: as configured, else {DEFAULT_FILE}].")


@click.group("baseline", short_help="Accept today's findings.")
def command() -> None:
    """Accept today's findings with their numbers; from then on a plan may only get better.

    `check` reads the file that `baseline` in the configuration or --baseline names.
    """


@command.command("write")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@FILE
@CONFIG
def write(paths: tuple[str, ...], baseline: str | None, config: str | None) -> int:
    """Accept every finding of these plans; entries of files that are not among them stay.

    Exit code 1 if a plan could not be judged: what prevents that cannot be accepted.
    """
    configurations = Configurations(config)
    file, configured = _file(configurations, baseline)
    folder = os.path.dirname(file) or "."
    options = CheckOptions(paths=paths, config=config, baseline="")
    gates = Gates(options, configurations)
    results: list[PlanResult] = []
    for found in plan_files(options, configurations, [], [], []):
        if isinstance(found, Unreadable):
            complain(f"cannot read {found.path}: {found.message}")
            return USAGE
        judged, traces = check_file(found.path, found.data, gates.of(found.path)._replace(remedies=None))
        if traces:
            write_bug_report(sys.argv[1:], tuple(traces))
            return DEFECT
        results += judged
    if not results:
        raise UsageError(f"nothing to accept: no plan in {', '.join(paths) or 'the configured paths'}")
    old = read_entries(file) if os.path.exists(file) else ()
    checked = {relative(result.path, folder) for result in results}
    kept = [e for e in old if e.path not in checked and os.path.exists(os.path.join(folder, e.path))]
    new = [entry for result in results for entry in entries_of(result, folder)]
    try:
        refuse_way_out(file)
        replace(file, rendered([*kept, *new]).encode())
    except OSError as error:
        raise UsageError(f"cannot write the baseline {file}: {error.strerror or error}") from error
    write_stdout(_summary(file, [*kept, *new], old) + ("" if configured else _hint(file)))
    unjudged = [result.path for result in results if result.estimate is None]
    if unjudged:
        complain(f"not checked, so nothing of it is accepted: {', '.join(dict.fromkeys(unjudged))}")
    return FINDINGS if unjudged else CLEAN


@command.command("show")
@FILE
@CONFIG
@COLOR
def show(baseline: str | None, config: str | None, color: str) -> int:
    """List what is accepted."""
    file, _ = _file(Configurations(config), baseline)
    rows = [
        (
            entry.path,
            entry.code,
            "" if entry.utilization is None else percent(entry.utilization),
            entry.pointer,
            entry.plan,
        )
        for entry in read_entries(file)
    ]
    heads = ("path", "code", "used", "key", "plan")
    screen, instead = screen_of(sys.stdout, color), f"read {one_line(file)}"
    write_stdout(table(heads, rows, screen, frozenset({2}), instead) if rows else f"{file} accepts nothing\n")
    return CLEAN


def _file(configurations: Configurations, named: str | None) -> tuple[str, bool]:
    """The baseline to use, and whether ``check`` finds it by itself."""
    configured = configurations.of_folder(os.getcwd()).baseline
    return named or configured or DEFAULT_FILE, bool(configured) and named in {None, configured}


def _summary(file: str, new: list[AcceptedFinding], old: tuple[AcceptedFinding, ...]) -> str:
    """What was written, and how it differs from what was there."""
    before, after = {entry[:4] for entry in old}, {entry[:4] for entry in new}
    changes = [f"{len(after - before)} new"] * bool(after - before) + [f"{len(before - after)} gone"] * bool(
        before - after
    )
    plans = len({entry[:2] for entry in new})
    more = f" ({', '.join(changes)})" if old and changes else ""
    findings = f"{len(after)} finding{'' if len(after) == 1 else 's'}"
    return f"wrote {file}: {findings} of {plans} plan{'' if plans == 1 else 's'}{more}\n"


def _hint(file: str) -> str:
    return f'`check` reads it with `--baseline {file}`, or with `baseline = "{file}"` in memcheck.toml\n'
