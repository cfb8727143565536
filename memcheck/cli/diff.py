"""``memcheck diff``: what changed between two states of the plans."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from memcheck.cli import values
from memcheck.cli.judging import Gates, configurations_of
from memcheck.cli.options import CheckOptions, Output
from memcheck.cli.parameters import COLOR, CONFIG, gpu, outputs, typed
from memcheck.cli.review.diff.compare import Amount, PlanDiff, Side, amount, compare, fails
from memcheck.cli.review.diff.report import FORMATS as RENDERERS
from memcheck.cli.review.diff.sides import LARGEST_REPORT, SideReader, read_report, sides_since
from memcheck.cli.tell import complain, write_bug_report
from memcheck.cli.write import write_each
from memcheck.edge.opener import read_whole
from memcheck.errors import DEFECT, UsageError
from memcheck.record import Record
from memcheck.rules import PROFILES


class DiffOptions(Record):
    """What to compare with, and how strictly."""

    from_ref: str | None
    limits: tuple[Amount, ...]
    fail_on_regression: bool
    least: Amount | None
    allow_empty: bool
    quiet: bool
    color: str


FORMATS = ("full", "markdown", "json")
FINDINGS, USAGE = 1, 2


@click.command("diff", short_help="Show what changed between two states of plans.")
@click.argument("paths", nargs=-1, metavar="OLD NEW | [PATH]...")
@click.option(
    "--from-ref",
    metavar="REF",
    help="Compare the working tree with this git ref; for a branch, with the merge base.",
)
@click.option(
    "--fail-on-increase",
    "limits",
    type=typed(amount),
    metavar="AMOUNT",
    multiple=True,
    help="Exit 1 if a plan grew by more than 2GiB, or 5% of what it needed. Repeatable: any of them.",
)
@click.option("--fail-on-regression", is_flag=True, help="Exit 1 if a plan fails that passed, or a new plan fails.")
@click.option(
    "--min-delta",
    "least",
    type=typed(amount),
    metavar="AMOUNT",
    help="Leave out plans that moved by less, as 0.1GiB or 1%, while their verdict stays.",
)
@outputs(FORMATS)
@click.option("--gpu", type=gpu, metavar="NAME", help="Judge both states on this GPU instead of the plans' own.")
@click.option("--profile", type=click.Choice(PROFILES), help="Which rules to run, as in check.")
@click.option(
    "--select",
    type=typed(values.selectors),
    metavar="RULES",
    multiple=True,
    help="Only these rules decide whether a plan fails.",
)
@click.option("--ignore", type=typed(values.selectors), metavar="RULES", multiple=True, help="Not these rules.")
@click.option("--no-suppressions", is_flag=True, help="Comments in plans hide nothing (for gates).")
@CONFIG
@click.option(
    "--config-from-ref",
    metavar="REF",
    help="For both states, configuration and baseline as this git ref has them (for gates).",
)
@click.option("--allow-empty", is_flag=True, help="Exit 0 if there is nothing to compare.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing if nothing moved.")
@COLOR
def command(
    outputs: tuple[Output, ...],
    paths: tuple[str, ...],
    config: str | None,
    select: tuple[tuple[str, ...], ...],
    ignore: tuple[tuple[str, ...], ...],
    **rest: Any,
) -> int:
    """Show what changed: memory before and after, per plan and per component, and verdicts.

    OLD and NEW are two plan files, two folders, or two JSON reports of `check`. With --from-ref, OLD is what git has
    and NEW are the files and folders of the working tree: as configured, else all of it.

    Both states are checked as `check` does it, with the configuration and the baseline of their time.

    Exit code 0 for any change, unless a threshold is set.
    """
    options = DiffOptions(**{name: rest.pop(name) for name in DiffOptions._fields})
    judging = CheckOptions(select=sum(select, ()), ignore=sum(ignore, ()), **rest)
    configurations = configurations_of(judging._replace(config=config))
    governed = config is not None or judging.config_from_ref is not None
    sides = SideReader(configurations, lambda found: Gates(judging, found).of, governed=governed)
    if options.from_ref is not None:
        paths = paths or configurations.of_folder(os.getcwd()).paths or (".",)
        before, after, unchanged, label = sides_since(options.from_ref, paths, sides)
        labels = (label, "the working tree")
    else:
        old, new = _two(paths)
        if judging != CheckOptions() and any(path.endswith(".json") for path in (old, new)):
            raise UsageError(
                "a report cannot be checked again",
                "leave out --gpu, --profile, --select, --ignore, --no-suppressions and --config-from-ref, "
                "or compare plans",
            )
        before, after, unchanged, labels = _side(old, sides), _side(new, sides), 0, (old, new)
    for item in sides.unreadable:
        complain(f"cannot read {item.path}: {item.message}")
    if not (before or after or unchanged or sides.unreadable or options.allow_empty):
        raise UsageError(f"nothing to compare: no plan in {', '.join(paths)}")
    limits = options.limits
    comparison = compare(before, after, labels, unchanged=unchanged, least=options.least, limits=limits)
    comparison = sides.with_remedies(comparison)
    _write(comparison, outputs or (Output("full"),), options.color, quiet=options.quiet)
    if sides.defects:
        write_bug_report(sys.argv[1:], tuple(sides.defects))
        return DEFECT
    if sides.unreadable:
        return USAGE
    return FINDINGS if fails(comparison, limits, on_regression=options.fail_on_regression) else 0


def _two(paths: tuple[str, ...]) -> tuple[str, str]:
    """OLD and NEW, of the same kind.

    Raises:
        UsageError: they are not two, or not the same kind of thing.
    """
    if len(paths) != 2:
        raise UsageError(
            f"diff takes OLD and NEW, and got {len(paths)} paths", "or --from-ref REF: what changed in the working tree"
        )
    old, new = paths
    if os.path.isdir(old) != os.path.isdir(new):
        folder, other = (old, new) if os.path.isdir(old) else (new, old)
        raise UsageError(f"{folder} is a folder and {other} is none", "compare two folders, two plans or two reports")
    return old, new


def _side(path: str, sides: SideReader) -> list[Side]:
    """The plans of a file, a folder or a report."""
    if not path.endswith(".json"):
        return sides.of_path(path)
    try:
        return read_report(path, read_whole(path, LARGEST_REPORT))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _write(comparison: PlanDiff, outputs: tuple[Output, ...], color: str, *, quiet: bool) -> None:
    """Each format to where it was asked for."""
    write_each(outputs, color, lambda form, screen: RENDERERS[form](comparison, screen._replace(quiet=quiet)))
