"""The files of a visit: names and bytes in memory, bounded, from which plans and all that they refer to are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from memcheck.edge.in_memory import FilesInMemory, looking_at
from memcheck.errors import UsageError

Step = TypeVar("Step")
MOST_FILES = 200
"""Files of a workspace."""
LARGEST = 1_048_576
"""Bytes of a file."""
MOST_BYTES = 16 * LARGEST
"""Bytes of all files."""
LONGEST_NAME = 200
"""Characters of a name."""
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\\:*?\"<>|]+")
"""Characters that a file can have in its name on every system."""


class Workspace:
    """Files by name. A name is a relative path with forward slashes, such as ``configs/train.yaml``."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self.state = 0
        """Changes when a file does."""

    def __contains__(self, name: object) -> bool:
        return name in self._files

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every file, in the order in which they came."""
        return tuple(self._files)

    def data(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            UsageError: there is no such file.
        """
        if name not in self._files:
            raise UsageError(f"there is no file `{name}` here", "send its text with the request")
        return self._files[name]

    def put(self, files: Mapping[str, bytes | None]) -> None:
        """Add or replace files, all of them or none; a file without bytes is removed.

        Raises:
            UsageError: a name that is none, or more files or bytes than a workspace holds.
        """
        changed = dict(self._files)
        for name, data in files.items():
            checked_name(name)
            if data is None:
                changed.pop(name, None)
                continue
            if len(data) > LARGEST:
                raise UsageError(
                    f"`{name}` has {len(data):,} bytes, more than {LARGEST:,}",
                    "the command line reads larger notebooks",
                )
            changed[name] = data
        if len(changed) > MOST_FILES:
            raise UsageError(f"there would be {len(changed):,} files, more than {MOST_FILES}", "remove some of them")
        total = sum(map(len, changed.values()))
        if total > MOST_BYTES:
            raise UsageError(f"the files would have {total:,} bytes, more than {MOST_BYTES:,}", "remove some of them")
        if changed != self._files:
            self._files.clear()
            self._files.update(changed)
            self.state += 1

    def reading(self) -> AbstractContextManager[None]:
        """A block in which memcheck reads these files and none of the disk's."""
        return looking_at(FilesInMemory(self._files))

    def while_reading(self, steps: Iterator[Step]) -> Iterator[Step]:
        """The steps of a search, each made while these files are read. Between two of them the disk is as usual."""
        while True:
            with self.reading():
                try:
                    step = next(steps)
                except StopIteration:
                    return
            yield step


def checked_name(name: str) -> str:
    """The name of a file, if it is one.

    Raises:
        UsageError: it is empty, too long, absolute, leads out of the workspace, or has a character that no name has.
    """
    if len(name) > LONGEST_NAME or not NAME.fullmatch(name):
        shown = name if len(name) <= LONGEST_NAME else f"{name[:40]}..."
        raise UsageError(
            f"{shown!r} is not a file name", f"use 1 to {LONGEST_NAME} characters without control characters"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name!r} is not a file name", "use characters of Unicode") from None
    parts = name.split("/")
    if not all(parts) or {".", ".."}.intersection(parts) or any(part.lower() == ".git" for part in parts):
        raise UsageError(f"{name!r} is not a file name here", "use a relative path such as `configs/train.yaml`")
    return name
