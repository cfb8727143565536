"""Writes a file atomically: a process that reads it meanwhile sees the old or the new text, never a part of one."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from memcheck.edge.opener import read_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

LARGEST = 64 * 2**20
"""Bytes of a file that is replaced, which is held while the others are."""


def replace(target: str, data: bytes) -> None:
    """Put a file in the place of ``target``, which keeps its permissions; a link is followed. Raises OSError."""
    replace_all({target: data})


def replace_all(files: Mapping[str, bytes]) -> None:
    """Replace several files, all or none: each is first written into its target's folder, and then all are renamed.

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


def put_in_place(path: str, data: bytes) -> None:
    """Replace a file, or overwrite it where its folder lets no other file take its place. Raises OSError.

    A file that a container mounts cannot be renamed, and one may be writable in a folder that is not. Overwriting
    truncates last: a disk without room leaves no empty file.
    """
    try:
        replace(path, data)
    except OSError as error:
        if error.errno not in _FIXED or not os.path.isfile(path):
            raise
        with open(path, "r+b") as file:
            if hasattr(os, "posix_fallocate") and data:
                os.posix_fallocate(file.fileno(), 0, len(data))
            file.write(data)
            file.truncate()


_FIXED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV)
"""What the system says of a folder that takes no new file, or of a file that is mounted."""


def _stage(name: str, target: str, data: bytes) -> str:
    """The path of a new file with ``data``, in the target's folder and with the target's permissions.

    Where the system has files without a name (Linux), the file gets one only when it is whole: a process that is killed
    meanwhile leaves no file.
    """
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is read-only", name)
    temporary = os.path.join(os.path.dirname(target), f".memcheck-{os.urandom(8).hex()}.tmp")
    try:
        if not _appears_whole(temporary, data):
            with open(temporary, "xb") as file:
                _fill(file, data)
        if os.path.exists(target):
            os.chmod(temporary, os.stat(target).st_mode & 0o7777)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return temporary


def _appears_whole(path: str, data: bytes) -> bool:
    """Write a file without a name and give it one; False where the system or the file system has none of that kind."""
    flag = getattr(os, "O_TMPFILE", 0)
    if not flag:
        return False
    try:
        descriptor = os.open(os.path.dirname(path), flag | os.O_WRONLY, 0o666)
    except OSError:  # NFS, older kernels, a folder that takes no file: one with a name says what is wrong
        return False
    with os.fdopen(descriptor, "wb") as file:
        _fill(file, data)
        try:  # the descriptor as a folder, which the absolute path ignores, makes Python follow the link in /proc
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
        except OSError:  # no /proc, or a sandbox
            return False
    return True


def _fill(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _bytes(target: str) -> bytes | None:
    """What a file holds now; None where there is none yet."""
    if not os.path.exists(target):
        return None
    return read_whole(target, LARGEST)
