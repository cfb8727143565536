"""What a run of ``check`` says on stderr, in addition to its reports."""

from __future__ import annotations

import os
from collections.abc import Sequence

from memcheck.cli.options import CheckOptions
from memcheck.cli.tell import tell
from memcheck.edge.text import one_line
from memcheck.result import PlanResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.config.unseen import Unseen
    from memcheck.review.baseline.file import AcceptedFinding


def tell_of_empty_share(elsewhere: int, options: CheckOptions) -> None:
    """Say on stderr, where reports for programs do not get it, that other shares have every file."""
    if not options.quiet:
        where = (
            "the only plan file is in another shard"
            if elsewhere == 1
            else f"all {elsewhere} plan files are in other shards"
        )
        tell(f"memcheck: nothing to check in shard {options.shard}: {where}\n")


def warn_of_unmarked(unmarked: Sequence[str], plans: Sequence[PlanResult]) -> bool:
    """Say which files look like plans and were not judged, but for those that plans extend; whether there are any."""
    bases = {os.path.normpath(path) for plan in plans for path in plan.sources}
    left = [path for path in unmarked if os.path.normpath(path) not in bases]
    if left:
        tell(
            f"memcheck: warning: not checked, because `memcheck: 1` is not at the top: {_first(left)}\n"
            "  help: a plan has that key; a file that plans extend needs none\n",
        )
    return bool(left)


def warn_of_unseen(unseen: Unseen) -> None:
    """Say which plans, and which folders, the search of a folder left out."""
    said = []
    if unseen.plans:
        count = len(unseen.plans)
        what = f"{count:,} {'plan' if count == 1 else 'plans'} in folders that a search leaves out"
        said.append(f"{what}: {_first(unseen.plans)}")
    if unseen.left:
        said.append(f"not looked into, for too many files or a link out of the repository: {_first(unseen.left)}")
    tell(f"memcheck: warning: not checked: {'; '.join(said)}\n  help: name the folder in the paths to check it\n")


def _first(paths: Sequence[str]) -> str:
    """The first paths, and how many more there are."""
    return ", ".join(map(one_line, paths[:5])) + (f" and {len(paths) - 5:,} more" if len(paths) > 5 else "")


def tell_of_stale(file: str, stale: Sequence[AcceptedFinding]) -> None:
    """Say which entries of a baseline accept nothing any more."""
    shown = ", ".join(f"{entry.code} of {entry.plan}" for entry in stale[:5])
    more = f" and {len(stale) - 5} more" if len(stale) > 5 else ""
    tell(
        f"memcheck: warning: {file} accepts what is gone: {shown}{more}\n"
        "  help: `memcheck baseline write` takes it out\n",
    )
