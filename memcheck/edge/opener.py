"""The one way to the bytes of a file that is not memcheck's own: regular files only, bounded, and no way out by links.

A pull request chooses what lies under a name: a link to a device or to a secret, a pipe that nobody writes to. Whoever
runs memcheck may name any file, but a link inside a repository leads to files of that repository or nowhere.
"""

from __future__ import annotations

import errno
import os
import stat

from memcheck.edge.observed import is_listening, note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_NOCTTY", "O_BINARY"):  # Windows lacks all but the last
    _FLAGS |= getattr(os, _name, 0)


class RefusedError(OSError):
    """A path that is not read, whatever its permissions; ``strerror`` says why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)


def read_start(path: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file and, where it is longer, one more.

    Raises:
        RefusedError: see :func:`open_file`.
        OSError: the file cannot be read.
    """
    if is_listening():
        return _noted(path, limit)
    with open_file(path) as file:
        return file.read(limit + 1)


def _noted(path: str, limit: int) -> bytes:
    """:func:`read_start`, taken down."""
    try:
        with open_file(path) as file:
            data = file.read(limit + 1)
    except OSError as error:
        note("start", path, described(error), limit)
        raise
    note("start", path, digest(data), limit)
    return data


def digest(data: bytes) -> str:
    """What stands for some bytes: no others have it."""
    try:
        from _blake2 import blake2b  # hashlib loads OpenSSL, which takes longer than all the rest
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, digest_size=32).hexdigest()


def described(error: OSError) -> str:
    """What is wrong with a file, as far as anything that was said of it tells."""
    return f"{type(error).__name__}: {error.strerror}"


def read_whole(path: str, limit: int) -> bytes:
    """Every byte of a regular file.

    Raises:
        RefusedError: see :func:`open_file`, or the file is larger than ``limit`` bytes.
        OSError: the file cannot be read.
    """
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size <= limit:
            data = file.read(limit + 1)
            if len(data) <= limit:
                return data
    raise RefusedError(path, f"it is larger than {limit:,} bytes")


def open_file(path: str) -> BinaryIO:
    """A regular file, open for reading.

    Raises:
        RefusedError: no regular file, a link out of the repository or in a circle, or a file inside ``.git``.
        OSError: the file cannot be opened.
    """
    real = _straight(path) or resolved(path)
    try:
        descriptor = os.open(real, _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RefusedError(path, "it is a link that leads back to itself") from error
        error.filename = path
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise RefusedError(path, "it is a device, a pipe or a socket, not a regular file")


_met: dict[str, bool] | None = None
"""Folders of a search, and whether a file in them is where its path says."""


def begin_search() -> None:
    """Look at every folder once until :func:`end_search`, and not at each on the way to every file in it."""
    global _met  # noqa: PLW0603 - a process searches once at a time
    _met = {}


def end_search() -> None:
    """Look at every folder again."""
    global _met  # noqa: PLW0603
    _met = None


def _straight(path: str) -> str:
    """The absolute path of a file that no link leads to, in a folder that was looked at; empty for any other."""
    if _met is None:
        return ""
    shown = os.path.abspath(path)
    folder, name = os.path.split(shown)
    known = _met.get(folder)
    if known is None:
        known = os.path.realpath(folder) == folder and ".git" not in folder.lower().split(os.sep)
        _met[folder] = known
    return shown if known and name.lower() != ".git" and not os.path.islink(shown) else ""


def resolved(path: str) -> str:
    """The absolute path of a file or folder without links.

    Raises:
        RefusedError: a link leads out of the repository that it lies in, or the path is inside ``.git``.
    """
    shown = os.path.abspath(path)
    try:
        real = os.path.realpath(shown)
    except ValueError as error:
        raise RefusedError(path, "no file can have this name") from error
    if real != shown:
        _check_links(path, shown)
    if ".git" in real.lower().split(os.sep):
        root, _ = repository(os.path.dirname(real))
        if ".git" in os.path.relpath(real, root).lower().split(os.sep):
            raise RefusedError(path, "it lies inside `.git`")
    return real


def refuse_way_out(path: str) -> None:
    """Stop before writing to a path that a link leads elsewhere; whoever names a file without links means it.

    Raises:
        RefusedError: a link leads out of the repository that it lies in, or into its ``.git``.
    """
    if os.path.realpath(path) != os.path.abspath(path):
        resolved(path)


def _check_links(path: str, shown: str) -> None:
    """Every link on the way stays where it is committed; one above all repositories is the machine's own."""
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


def repository(folder: str) -> tuple[str, bool]:
    """The nearest ancestor with ``.git`` (a folder, or a file in a worktree); else the folder itself."""
    found = _repository(folder)
    note("repository", folder, repr(found))
    return found


def _repository(folder: str) -> tuple[str, bool]:
    ancestor = folder
    while not os.path.exists(os.path.join(ancestor, ".git")):
        parent = os.path.dirname(ancestor)
        if parent == ancestor:
            return folder, False
        ancestor = parent
    return ancestor, True


def is_inside(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder or lies below it; links are not followed."""
    try:
        return os.path.commonpath((path, folder)) == folder
    except ValueError:  # another drive
        return False
