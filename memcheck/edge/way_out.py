"""Whether a link leads out of where it is committed."""

from __future__ import annotations

import os

from memcheck.edge.opener import RefusedError, is_inside, repository, resolved


def check_links(path: str, shown: str) -> None:
    """Every link on the way to a file stays where it is committed; one above all repositories is the machine's own.

    Raises:
        RefusedError: one does not.
    """
    above = shown
    while True:
        folder = os.path.dirname(above)
        if folder == above:
            return
        if os.path.islink(above):
            limit = _limit_of_link(os.path.realpath(folder), last=above == shown)
            if limit is not None and not is_inside(os.path.realpath(above), limit[0]):
                raise RefusedError(path, f"it is a link that leads out of {limit[1]}")
        above = folder


def _limit_of_link(folder: str, *, last: bool) -> tuple[str, str] | None:
    """The folder that a link may not lead out of, and its name in messages; None for any."""
    root, in_git = repository(folder)
    if in_git:
        return root, "the repository"
    here = os.path.realpath(os.curdir)
    if is_inside(folder, here):
        return here, "the working directory, which is in no git repository"
    return (folder, "its folder, which is in no git repository") if last else None


def refuse_way_out(path: str) -> None:
    """Stop before writing to a path that a link leads elsewhere; whoever names a file without links means it.

    Raises:
        RefusedError: a link leads out of the repository that it lies in, or into its ``.git``; or no file can have this
            name.
    """
    try:
        is_straight = os.path.realpath(path) == os.path.abspath(path)
    except ValueError:  # no file can have this name, which is said below
        is_straight = False
    if not is_straight:
        resolved(path)
