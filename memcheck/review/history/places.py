"""Where a file lies in its repository."""

from __future__ import annotations

import os

from memcheck.errors import UsageError
from memcheck.review.history.git import Base


def inside_of(base: Base, path: str, option: str = "--from-ref") -> str:
    """A path from the repository's root, with forward slashes; the file itself may be a link.

    ``option`` is what asks for it.

    Raises:
        UsageError: it lies outside.
    """
    folder, name = os.path.split(os.path.normpath(path))
    full = os.path.normpath(os.path.join(os.path.realpath(folder or "."), name))
    if full != base.root and not full.startswith(base.root.rstrip(os.sep) + os.sep):
        raise UsageError(f"{path} lies outside the repository", f"{option} looks at the files of one git repository")
    inside = os.path.relpath(full, base.root).replace(os.sep, "/")
    return "" if inside == "." else inside
