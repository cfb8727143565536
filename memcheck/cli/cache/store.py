"""The directory of kept verdicts: one small file each, which only the user who runs memcheck can have written.

A directory or a file that another user owns or can write is not used. Neither is a file that was changed after writing.
Nothing here raises: a verdict that cannot be kept or found is reached anew.
"""

from __future__ import annotations

import os
import stat
import sys

from memcheck.edge.opener import digest, is_inside, repository

LARGEST = 64 * 2**10
"""Bytes of a file; a verdict that takes more is not kept."""
LARGEST_RUN = 8 * 2**20
"""Bytes of a file that holds what a whole run said."""
MOST_BYTES = 256 * 2**20
"""Bytes of all files, from which on the oldest go."""
FEW = MOST_BYTES // LARGEST
"""The number of files that are never too large together."""
FEW_RUNS = MOST_BYTES // LARGEST_RUN
"""The number that is never too large where what whole runs said is among them."""
LEFT = 3 / 4
"""Share of ``MOST_BYTES`` that stays when the oldest go."""
DAY_S = 86_400
_DIGITS = 64
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def location() -> str:
    """The directory of this user; empty where there is none."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return ""
        base = os.path.join(home, *(("Library", "Caches") if sys.platform == "darwin" else (".cache",)))
    return os.path.join(base, "memcheck")


def opened(path: str, *, make: bool) -> int | None:
    """A descriptor of the directory; None where it is missing, lies in a repository, or is not this user's alone."""
    if not path or not hasattr(os, "geteuid") or os.open not in os.supports_dir_fd:
        return None  # Windows does not say whose a file is
    try:
        real = os.path.realpath(path)
        if repository(real)[1] or is_inside(real, os.path.realpath(os.curdir)):
            return None
        if make:
            os.makedirs(os.path.dirname(real), mode=0o700, exist_ok=True)
            if not os.path.isdir(real):
                os.mkdir(real, 0o700)
        descriptor = os.open(real, _FOLDER)
        if _is_own(os.fstat(descriptor), stat.S_IFDIR):
            return descriptor
        os.close(descriptor)
    except OSError:
        pass
    return None


def _is_own(status: os.stat_result, kind: int) -> bool:
    """Whether a file is of this kind, belongs to the user, and gives no rights to other users."""
    return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def fetch(folder: int, name: str, largest: int = LARGEST) -> str | None:
    """What is kept under a name; None where nothing is, or not as it was written."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not _is_own(status, stat.S_IFREG) or status.st_size > largest:
            return None
        data = os.read(descriptor, largest + 1)
        body = data[_DIGITS:]
        if data[:_DIGITS] != _seal(name, body):
            return None
        _mark_used(descriptor, status)
        return body.decode()
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)


def _seal(name: str, body: bytes) -> bytes:
    """What stands before a body: of no other name and no other body."""
    return digest(name.encode() + body).encode()


def _mark_used(descriptor: int, status: os.stat_result) -> None:
    import time

    now = time.time()
    if abs(now - status.st_mtime) > DAY_S and os.utime in os.supports_fd:
        os.utime(descriptor, (now, now))


def keep(folder: int, name: str, text: str, largest: int = LARGEST) -> None:
    """Keep a text under a name, all of it or nothing, also where another process does the same at the same time."""
    body = text.encode()
    if len(body) > largest - _DIGITS:
        return
    temporary = f".{os.getpid()}-{os.urandom(8).hex()}"
    try:
        descriptor = os.open(temporary, _WRITE, 0o600, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_seal(name, body) + body)
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(temporary, dir_fd=folder)
    except OSError:
        return


def bound(folder: int, *, has_runs: bool = False) -> None:
    """Remove the files that were used least lately, where there are too many bytes.

    ``has_runs``: whether large files were added, so that few may be too large together.
    """
    try:
        names = os.listdir(folder)
        if len(names) <= (FEW_RUNS if has_runs else FEW):
            return
        found = sorted((_age_and_size(folder, name), name) for name in names)
    except OSError:
        return
    left = sum(size for (_, size), _ in found)
    if left <= MOST_BYTES:
        return
    for (_, size), name in found:
        if left <= MOST_BYTES * LEFT:
            return
        remove(folder, name)
        left -= size


def _age_and_size(folder: int, name: str) -> tuple[float, int]:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # another process was quicker
        return 0.0, 0
    return status.st_mtime, status.st_size


def remove(folder: int, name: str) -> bool:
    """Remove one file; whether it was there and is not any more."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True
