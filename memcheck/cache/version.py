"""What memcheck itself is: a verdict that another one reached is none of this one's."""

from __future__ import annotations

import os
import sys

from memcheck import __version__

FORMAT = 1
"""Raised when an entry of the same content would be read another way."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
READERS = ("yaml", "tomlkit", "jsonschema")
"""Packages through whose hands plans, remedies and messages go."""


def identity() -> str:
    """Memcheck's version and files, Python's version, and the packages that read plans."""
    return repr((FORMAT, __version__, sys.version, sys.platform, _own_files(), [_reader(name) for name in READERS]))


def _own_files() -> object:
    """What changes when the package does: an installed one's record, or every file of a checkout."""
    record = os.path.join(os.path.dirname(PACKAGE), f"memcheck-{__version__}.dist-info", "RECORD")
    try:
        return PACKAGE, _state(os.stat(record))
    except OSError:
        return PACKAGE, _files(PACKAGE), _files(os.path.join(os.path.dirname(PACKAGE), "schemas"))


def _files(folder: str) -> list[object]:
    found: list[object] = []
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in sorted(entries, key=lambda each: each.name):
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != "__pycache__":
                            waiting.append(entry.path)
                    else:
                        found.append((entry.name, *_state(entry.stat())))
        except OSError:  # noqa: PERF203
            found.append(None)
    return found


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _reader(name: str) -> object:
    """The package that an import of this name would find in a folder of the search path."""
    for folder in sys.path:
        try:
            return folder, _state(os.stat(os.path.join(folder, name, "__init__.py")))
        except OSError:  # noqa: PERF203
            continue
    return None
