"""``memcheck sweep``: a grid over any keys of one plan."""

from __future__ import annotations

import click

from memcheck.cli.compare import subjects
from memcheck.cli.options import Output
from memcheck.cli.parameters import COLOR, CONFIG, files, outputs, typed
from memcheck.cli.progress import progress
from memcheck.cli.write import write_each
from memcheck.errors import UsageError
from memcheck.what_if.sweep import Axis, axis, grid, sweep
from memcheck.what_if.sweep.report import FORMATS

UNREADABLE, NOTHING_PRICED = 2, 1


@click.command("sweep")
@click.argument("path", metavar="PLAN", shell_complete=files)
@click.option(
    "--set",
    "axes",
    type=typed(axis),
    metavar="KEY=V1,V2,...",
    multiple=True,
    required=True,
    help="A key and its values, e.g. training.micro_batch_size=1,2,4 or parallelism.tensor=1..8. Repeatable.",
)
@outputs(tuple(FORMATS))
@click.option("--progress", "wanted", is_flag=True, help="Show progress on stderr though that is no terminal.")
@CONFIG
@COLOR
def command(
    path: str, axes: tuple[Axis, ...], outputs: tuple[Output, ...], wanted: bool, config: str | None, color: str
) -> int:
    """Evaluate a plan at every combination of values: memory, verdict and speed of each point.

    Points that a rule or the schema refuses are shown with its code. Speeds come from a roofline model, which ranks.

    Exit code 0 if any point could be estimated, whether it fits or not; 1 if none could.
    """
    points = grid(axes)
    found, readable = subjects((path,), config, "sweep")
    if not readable:
        return UNREADABLE
    if len(found) != 1:
        raise UsageError(f"sweep takes one plan, and {path} has {len(found)}", "put it into a file of its own")
    answer = sweep(found[0], points, progress("sweep", points.size, wanted=wanted))
    write_each(outputs or (Output("full"),), color, lambda form, screen: FORMATS[form](answer, screen))
    return 0 if any(point.estimated for point in answer.points) else NOTHING_PRICED
