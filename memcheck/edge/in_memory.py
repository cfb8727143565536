"""Files that exist only in memory: while they are looked at, no question about files reaches the disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from memcheck.edge import opener

ROOT = os.path.join(os.path.abspath(os.sep), "workspace")
"""The folder that all files seem to be in. It is the working directory and the repository of whoever looks at them."""


class FilesInMemory:
    """Bytes by relative path with forward slashes, such as ``configs/train.yaml``; folders follow from the paths."""

    root = ROOT

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    def name_of(self, path: str) -> str:
        """The relative path of a file or folder: empty for the root, ``..`` for what is outside."""
        inside = os.path.relpath(self.real_path(path), ROOT).replace(os.sep, "/")
        return "" if inside == "." else ".." if inside.startswith("../") else inside

    def real_path(self, path: str) -> str:
        """The absolute path below :data:`ROOT`; no file is a link."""
        return os.path.normpath(os.path.join(ROOT, path))

    def is_file(self, path: str) -> bool:
        """Whether a path is a file."""
        return self.name_of(path) in self._files

    def is_folder(self, path: str) -> bool:
        """Whether a path is the root, or a folder with a file in it."""
        name = self.name_of(path)
        return not name or any(each.startswith(f"{name}/") for each in self._files)

    def exists(self, path: str) -> bool:
        """Whether a path is a file or a folder."""
        return self.is_file(path) or self.is_folder(path)

    def read(self, path: str) -> bytes:
        """Every byte of a file.

        Raises:
            OSError: there is no such file, or it is a folder.
        """
        found = self._files.get(self.name_of(path))
        if found is None:
            number = errno.EISDIR if self.is_folder(path) else errno.ENOENT
            raise OSError(number, os.strerror(number), path)
        return found


@contextmanager
def looking_at(files: FilesInMemory) -> Iterator[None]:
    """Answer every question about files from these instead of from the disk, until the block ends."""
    before = opener.look_at(files)
    try:
        yield
    finally:
        opener.look_at(before)
