"""Which files a pattern of the configuration means."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase


def matches(path: str, pattern: str, folder: str) -> bool:
    """Whether the pattern fits the file's name, or its path relative to ``folder``; ``*`` also spans slashes."""
    relative = os.path.relpath(path, folder).replace(os.sep, "/")
    return fnmatchcase(os.path.basename(path), pattern) or fnmatchcase(
        relative, os.path.normpath(pattern).replace(os.sep, "/")
    )
