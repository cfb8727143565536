"""``memcheck diff``: what changed between two states of the plans.

The plans of one side of a comparison, checked: files and folders, an earlier commit, or a JSON report.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Any

import click

from memcheck.cli import values
from memcheck.cli.judging import Gates, configurations_of
from memcheck.cli.options import CheckOptions, Output
from memcheck.cli.parameters import COLOR, CONFIG, gpu, outputs, typed
from memcheck.cli.review.baseline import LARGEST
from memcheck.cli.review.diff.compare import (
    ACCEPTED,
    FAILS_NOW,
    WARNED,
    Amount,
    PlanDiff,
    Side,
    amount,
    compare,
    fails,
    side_of,
)
from memcheck.cli.review.diff.report import FORMATS as RENDERERS
from memcheck.cli.review.history.changed import Changes
from memcheck.cli.review.history.checkout import Tree, lay_out, lay_out_files
from memcheck.cli.review.history.git import inside_of, open_base
from memcheck.cli.write import complain, write_bug_report, write_each
from memcheck.config.find import SKIPPED_FOLDERS, STDIN, SUFFIXES, Configurations, PlanFile, find_plans
from memcheck.edge.opener import read_whole
from memcheck.errors import DEFECT, ConfigurationError, UsageError
from memcheck.judge import Gate, check_file
from memcheck.plan.sniff import looks_like_plan
from memcheck.plan.text import MAX_BYTES, read_bytes
from memcheck.record import Record
from memcheck.report.story.remedies import remedy_line
from memcheck.rules import PROFILES
from memcheck.rules.result import PASSED, PlanResult, Unreadable

GateOf = Callable[[str], Gate]
"""How strictly to judge the file of a path."""


class SideReader:
    """Judges plans and remembers what went wrong."""

    def __init__(
        self, configurations: Configurations, gates: Callable[[Configurations], GateOf], *, governed: bool
    ) -> None:
        """``configurations`` are those of the working tree, or where ``governed`` those of both sides."""
        self._governed = governed
        self._gates = gates
        self._gate_of = gates(configurations)
        self.unreadable: list[Unreadable] = []
        self.defects: list[str] = []
        self._failing: dict[str, tuple[PlanFile, Gate]] = {}
        """Files with a plan that fails, by the path that is shown; of both sides, the later one stays."""

    def baseline_of(self, path: str) -> str:
        """The baseline file for a plan's findings; empty for none."""
        return self._gate_of(path).baseline_file

    def of_path(self, path: str) -> list[Side]:
        """The plans of a file or below a folder; what they are paired by is their path inside it."""
        folder = os.path.isdir(path)

        def key(shown: str) -> str:
            return os.path.relpath(shown, path).replace(os.sep, "/") if folder else ""

        return self.of_files(find_plans((path,)), lambda shown: shown, key)

    def of_files(
        self,
        files: Iterable[PlanFile | Unreadable],
        shown: Callable[[str], str],
        key: Callable[[str], str],
        gate_of: GateOf | None = None,
    ) -> list[Side]:
        """The plans of files; ``shown`` and ``key`` take a file's path."""
        gate_of = gate_of or self._gate_of
        sides: list[Side] = []
        for found in files:
            if isinstance(found, Unreadable):
                self.unreadable.append(found)
                continue
            gate = gate_of(found.path)._replace(hours=True)
            results, traces = check_file(found.path, found.data, gate._replace(remedies=None, grounds=None))
            sides += [side_of(result, shown(found.path), key(found.path)) for result in results]
            if any(result.status != PASSED for result in results):
                self._failing[shown(found.path)] = found, gate
            self.defects += traces
        return sides

    def with_remedies(self, comparison: PlanDiff) -> PlanDiff:
        """The comparison with the first remedy of each plan that fails now, for the first few of them."""
        changes, left = [], MOST_REMEDIES
        for change in comparison.changes:
            after = change.after
            if after is not None and change.verdict == FAILS_NOW and after.path in self._failing and left:
                left -= 1
                found, gate = self._failing[after.path]
                results, _ = check_file(found.path, found.data, gate._replace(grounds=None))
                change = change._replace(remedy=first_remedy(results, after))
            changes.append(change)
        return comparison._replace(changes=tuple(changes))

    def earlier_gates(self, now: Callable[[str], str]) -> GateOf:
        """Gates of earlier plans: by the settings of their time, or by today's where those are of no use any more.

        ``now`` gives the path that an earlier plan has in the working tree.
        """
        if self._governed:
            return lambda path: _moved(self._gate_of(now(path)), now)
        then = self._gates(Configurations())

        def of(path: str) -> Gate:
            try:
                return then(path)
            except ConfigurationError:
                return self._gate_of(now(path))

        return of


MOST_REMEDIES = 20
"""Searches in one comparison: each takes as long as judging a plan that fails."""


def first_remedy(results: Iterable[PlanResult], after: Side) -> str:
    """What ``check`` offers first for a plan, in one line; empty where it offers nothing."""
    for result in results:
        if result.document == after.document:
            for finding in result.findings:
                if finding.remedies:
                    return remedy_line(result, finding.remedies[0])
    return ""


def _moved(gate: Gate, now: Callable[[str], str]) -> Gate:
    """The gate for a plan that lies elsewhere than the paths of its baseline say."""
    held = gate.baseline
    if held is None:
        return gate
    return gate._replace(baseline=lambda result, finding: held(result._replace(path=now(result.path)), finding))


LARGEST_REPORT = 1024 * 2**20
"""Bytes of a JSON report, some 100,000 plans: it is read whole."""


def read_report(path: str, data: bytes) -> list[Side]:
    """The plans of a report.

    Raises:
        UsageError: the file is no report that this version can read.
    """
    try:
        document = json.loads(data)
        if document["report"] != 1:
            raise UsageError(
                f"{path} is a report of format {document['report']!r}, not 1", "use the memcheck that wrote it"
            )
        return [_side(plan) for plan in document["plans"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise UsageError(
            f"{path} is no JSON report of memcheck", "write one with: memcheck check --format json=FILE"
        ) from error


def _side(plan: dict[str, Any]) -> Side:
    estimate = plan["estimate"]
    errors = [each for each in plan.get("diagnostics", ()) if each["severity"] == "error"]
    warned = any(each["severity"] == "warning" for each in plan.get("diagnostics", ()))
    side = Side(
        path=str(plan["path"]),
        key=str(plan["path"]),
        document=int(plan["document"]),
        name=str(plan["name"]),
        status=str(plan["status"]),
        codes=tuple(dict.fromkeys(f"{each['code']} {each['name']}" for each in errors)),
        mark=ACCEPTED if plan.get("accepted") else WARNED if str(plan["status"]) == PASSED and warned else "",
        verdict=str((estimate or {}).get("verdict") or ""),
    )
    if estimate is None:
        return side
    capacity = estimate.get("host_capacity_bytes")
    parts = {str(name): int(count) for name, count in estimate["components_bytes"].items()}
    parts["fragmentation"] -= int(estimate["cache_bytes"])
    return side._replace(
        needed_bytes=int(estimate["needed_bytes"]),
        device_bytes=int(estimate["device_bytes"]),
        capacity_bytes=int(estimate["capacity_bytes"]),
        utilization=float(estimate["utilization"]),
        host_bytes=int(estimate.get("host_bytes_per_node", 0)),
        host_capacity_bytes=None if capacity is None else int(capacity),
        components_bytes=parts,
    )


def sides_since(ref: str, paths: tuple[str, ...], sides: SideReader) -> tuple[list[Side], list[Side], int, str]:
    """Plans before, plans after, how many files did not change, and the commit in words.

    Only plans are judged whose files changed, on either side: the others cannot have moved.

    Raises:
        UsageError: the ref cannot be compared with.
    """
    if STDIN in paths:
        raise UsageError("--from-ref cannot be used with -", "what stdin holds has no earlier state in git")
    base = open_base(ref)
    with closing(Tree(base)) as tree, TemporaryDirectory(prefix="memcheck-") as folder:
        changes = Changes(base, tree, sides.baseline_of)
        touched: list[PlanFile | Unreadable] = []
        unchanged: set[str] = set()
        there = [path for path in paths if os.path.lexists(path) or not _earlier(tree, inside_of(base, path))]
        for found in find_plans(there):
            if isinstance(found, Unreadable) or changes.touches(found):
                touched.append(found)
            else:
                unchanged.add(inside_of(base, found.path))
        after = sides.of_files(touched, lambda path: path, lambda path: inside_of(base, path))
        before_files = [
            inside
            for inside in dict.fromkeys(each for path in paths for each in _earlier(tree, inside_of(base, path)))
            if inside not in unchanged
        ]
        lay_out(tree, before_files, folder)
        root = os.path.realpath(folder)
        lay_out_files(tree, _baselines(root, before_files), root, LARGEST)

        def inside(path: str) -> str:
            return os.path.relpath(path, root).replace(os.sep, "/")

        def shown(path: str) -> str:
            return os.path.relpath(os.path.join(base.root, inside(path)), os.path.realpath(".")).replace(os.sep, "/")

        before = sides.of_files(_files(root, before_files), shown, inside, sides.earlier_gates(shown))
    return before, after, len(unchanged), base.label


def _earlier(tree: Tree, path: str) -> list[str]:
    """The files of the tree that may be plans: the path itself, or YAML files below it, as a folder is searched."""
    if path in tree:
        return [path]
    found = []
    for each in tree.below(path):
        *folders, name = (each[len(path) + 1 :] if path else each).split("/")
        hidden = any(folder.startswith(".") or folder in SKIPPED_FOLDERS for folder in folders)
        if name.lower().endswith(SUFFIXES) and not hidden and looks_like_plan(tree.read(each, MAX_BYTES) or b""):
            found.append(each)
    return found


def _baselines(root: str, plans: list[str]) -> set[str]:
    """The baselines that the laid-out configurations name, from the root: they accepted what they accept there."""
    configurations = Configurations()
    found = set()
    for plan in plans:
        try:
            file = configurations.of(os.path.join(root, *plan.split("/"))).baseline
        except ConfigurationError:  # of no use any more: then today's settings count
            continue
        inside = os.path.relpath(os.path.realpath(file), root) if file else ".."
        if not inside.startswith(".."):
            found.add(inside.replace(os.sep, "/"))
    return found


def _files(root: str, names: list[str]) -> Iterator[PlanFile]:
    """The laid-out plans."""
    for name in sorted(names):
        path = os.path.join(root, *name.split("/"))
        yield PlanFile(path, read_bytes(path))


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
        before, after, unchanged, labels = _plans_of_side(old, sides), _plans_of_side(new, sides), 0, (old, new)
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


def _plans_of_side(path: str, sides: SideReader) -> list[Side]:
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
