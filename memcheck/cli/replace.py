"""Writes a file at once: whoever reads it meanwhile sees the old or the new text, never a part of one."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from memcheck.edge.opener import read_whole

LARGEST = 64 * 2**20
"""Bytes of a file that is replaced, which is held while the others are."""


def replace(target: str, data: bytes) -> None:
    """Put a file in the place of ``target``, which keeps its permissions; a link is followed. Raises OSError."""
    replace_all({target: data})


def replace_all(files: Mapping[str, bytes]) -> None:
    """Replace several files, all or none: each is written beside its target first, and only then they change places.

    Raises OSError, whose ``filename`` is the target that could not be replaced.
    """
    staged: list[tuple[str, str]] = []
    done: list[tuple[str, bytes | None]] = []
    try:
        for name, data in files.items():
            target = os.path.realpath(name)
            staged.append((target, _stage(name, target, data)))
        for target, temporary in staged:
            before = _bytes(target)
            os.replace(temporary, target)
            done.append((target, before))
    except BaseException:
        for target, before in reversed(done):
            if before is not None:
                os.replace(_stage(target, target, before), target)
        for _, temporary in staged:
            if os.path.exists(temporary):
                os.unlink(temporary)
        raise


def _stage(name: str, target: str, data: bytes) -> str:
    """The new text in a file of its own beside its target, with the target's permissions."""
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only", name)
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            os.chmod(temporary, os.stat(target).st_mode & 0o7777)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return temporary


def _bytes(target: str) -> bytes | None:
    """What a file holds now; None where there is none yet."""
    if not os.path.exists(target):
        return None
    return read_whole(target, LARGEST)
