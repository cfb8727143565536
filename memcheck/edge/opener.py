"""The one way to the bytes of a file that is not memcheck's own: regular files only, bounded, and no way out by links.

A pull request chooses what lies under a name: a link to a device or to a secret, or a pipe without a writer. The user
who runs memcheck may name any file, but a link inside a repository leads to files of that repository or nowhere.

Every question about files between a plan's text and its verdict is asked here, and its answer is taken down: a kept
verdict is valid as long as the files say the same.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import blake2b as Summing  # noqa: N812
    from typing import Any, BinaryIO

    from memcheck.edge.in_memory import FilesInMemory


_files: FilesInMemory | None = None
_heard: dict[tuple[str, str, int, str], None] | None = None


def listen() -> None:
    """Take down from now on what is asked and answered."""
    global _heard  # noqa: PLW0603 - one plan is judged at a time in a process
    _heard = {}


def heard() -> list[tuple[str, str, int, str]]:
    """Every question since :func:`listen`, each with its path, its limit in bytes and the answer, and no more of it."""
    global _heard
    found, _heard = list(_heard or ()), None
    return found


class Overheard:
    """What is asked between two points, which whoever listens hears as well."""

    def __init__(self) -> None:
        self._outer = _heard
        self.notes: tuple[tuple[str, str, int, str], ...] = ()
        """What was asked, once it has ended."""
        listen()

    def end(self) -> None:
        """Hand on what was asked."""
        global _heard
        self.notes, _heard = tuple(heard()), self._outer
        for question, path, limit, answer in self.notes:
            note(question, path, answer, limit)


def is_listening() -> bool:
    """Whether a listener takes down the answers."""
    return _heard is not None


def note(question: str, path: str, answer: str, limit: int = 0) -> None:
    """Record the answer of a file to a question, for the listener, if there is one."""
    if _heard is not None:
        _heard[question, path, limit, answer] = None


def look_at(files: FilesInMemory | None) -> FilesInMemory | None:
    """Ask these files from now on, or the disk where it is None; what was asked so far is returned."""
    global _files
    before, _files = _files, files
    return before


def in_memory() -> FilesInMemory | None:
    """The files that are asked instead of the disk; None: the disk is asked."""
    return _files


def is_file(path: str) -> bool:
    """Whether a path is a regular file, or a link to one."""
    found = os.path.isfile(path) if _files is None else _files.is_file(path)
    note("is_file", path, str(found))
    return found


def is_folder(path: str) -> bool:
    """Whether a path is a folder, or a link to one."""
    found = os.path.isdir(path) if _files is None else _files.is_folder(path)
    note("is_folder", path, str(found))
    return found


def exists(path: str) -> bool:
    """Whether there is anything under a path."""
    found = os.path.exists(path) if _files is None else _files.exists(path)
    note("exists", path, str(found))
    return found


LISTED = (".md", ".rst", ".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".ipynb", ".yml", "makefile", "justfile")
"""Ends of the names of files in which people keep their launch lines."""
MOST_NAMES, MOST_LISTED = 1000, 40
"""Entries of a folder that are looked at, and names that are given of it."""


def names_in(folder: str) -> tuple[str, ...]:
    """The names of a folder that end as :data:`LISTED` says, in their order; empty where there is no such folder."""
    if _files is not None:
        return ()
    try:
        with os.scandir(folder) as entries:
            named = [each.name for _, each in zip(range(MOST_NAMES), entries, strict=False)]
    except (OSError, ValueError):
        named = []
    found = tuple(sorted(each for each in named if each.lower().endswith(LISTED) and each.isprintable())[:MOST_LISTED])
    note("names", folder, repr(found))
    return found


def real_path(path: str) -> str:
    """The absolute path without links; of a name that no file can have, the path as it is written."""
    try:
        found = os.path.realpath(path) if _files is None else _files.real_path(path)
    except ValueError:  # a zero byte, or half a surrogate pair: whoever opens it says so
        found = os.path.abspath(path)
    note("real_path", path, found)
    return found


def today() -> str:
    """The day in UTC, as YYYY-MM-DD."""
    import time

    found = time.strftime("%Y-%m-%d", time.gmtime())
    note("today", "", found)
    return found


_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_NOCTTY", "O_BINARY"):  # Windows lacks all but the last
    _FLAGS |= getattr(os, _name, 0)


class RefusedError(OSError):
    """The error for a path that is never read, even if its permissions allow it. ``strerror`` says why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, why, path)


def read_start(path: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file and, where it is longer, one more.

    Raises:
        RefusedError: see :func:`open_file`.
        OSError: the file cannot be read.
    """
    if _once is not None:
        return _read_once(path, limit, _once)
    return _noted(path, limit) if is_listening() else _read_start(path, limit)


MOST_KEPT = 8 * 2**20
"""Bytes of other files that are kept while one file of plans is judged."""


class _ReadFiles:
    """Files that were read, by path and limit: the bytes, or why there are none, and what is taken down of them."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, int], tuple[bytes | OSError, str]] = {}
        self.size = 0


_once: _ReadFiles | None = None


def _read_once(path: str, limit: int, known: _ReadFiles) -> bytes:
    found, answer = known.files.get((path, limit), (None, ""))
    if found is None:
        try:
            found = _read_start(path, limit)
        except OSError as error:
            found = error
        size = len(found) if isinstance(found, bytes) else 0
        if known.size + size <= MOST_KEPT:
            known.files[path, limit] = found, ""
            known.size += size
    if is_listening():
        if not answer:
            answer = described(found) if isinstance(found, OSError) else digest(found)
            if (path, limit) in known.files:
                known.files[path, limit] = found, answer
        note("start", path, answer, limit)
    if isinstance(found, OSError):
        raise found.with_traceback(None)
    return found


def begin_reading_once() -> None:
    """Read every file once until :func:`end_reading_once`: all plans of a file see the same bytes of what they name."""
    global _once  # noqa: PLW0603 - one file of plans is judged at a time in a process
    _once = _ReadFiles()


def end_reading_once() -> None:
    """Read every file anew each time."""
    global _once  # noqa: PLW0603
    _once = None


def _read_start(path: str, limit: int) -> bytes:
    """Bytes as the system hands them out: a stream around a small file costs more than to read it."""
    files = in_memory()
    if files is not None:
        return files.read(path)[: limit + 1]
    descriptor, size = _opened(path)
    try:
        read = data = os.read(descriptor, min(size, limit) + 1)
        while read and len(data) <= limit:  # a file of /proc has no size, and others may grow
            read = os.read(descriptor, limit + 1 - len(data) if len(data) > size else size + 1 - len(data))
            data += read
    finally:
        os.close(descriptor)
    return data


def _noted(path: str, limit: int) -> bytes:
    """:func:`read_start`, taken down."""
    try:
        data = _read_start(path, limit)
    except OSError as error:
        note("start", path, described(error), limit)
        raise
    note("start", path, digest(data), limit)
    return data


def digest(data: bytes) -> str:
    """What stands for some bytes: no others have it."""
    return summing(data).hexdigest()


def summing(data: bytes) -> Summing:
    """:func:`digest` of some bytes and of those that are added with ``update``."""
    try:
        from _blake2 import blake2b  # hashlib loads OpenSSL, which takes longer than all the rest
    except ImportError:
        from hashlib import blake2b
    return blake2b(data, digest_size=32)


def described(error: OSError) -> str:
    """What is wrong with a file, as far as anything that was said of it tells."""
    return f"{type(error).__name__}: {error.strerror}"


def read_whole(path: str, limit: int) -> bytes:
    """Every byte of a regular file.

    Raises:
        RefusedError: see :func:`open_file`, or the file is larger than ``limit`` bytes.
        OSError: the file cannot be read.
    """
    files = in_memory()
    if files is not None:
        data = files.read(path)
        if len(data) <= limit:
            return data
        raise RefusedError(path, f"it is larger than {limit:,} bytes")
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
    files = in_memory()
    if files is not None:
        from io import BytesIO

        return BytesIO(files.read(path))
    return os.fdopen(_opened(path)[0], "rb")


def _opened(path: str) -> tuple[int, int]:
    """:func:`open_file` as a descriptor, and the size that the file says it has."""
    descriptor = _descriptor(path)
    status = os.fstat(descriptor)
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return descriptor, status.st_size
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise RefusedError(path, "it is a device, a pipe or a socket, not a regular file")


def _descriptor(path: str) -> int:
    straight = _straight(path)
    if straight:
        try:
            return os.open(straight, _FLAGS)
        except OSError as error:
            if error.errno != errno.ELOOP:  # else it is a link
                error.filename = path
                raise
        except ValueError as error:
            raise RefusedError(path, _NO_NAME) from error
    try:
        return os.open(resolved(path), _FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RefusedError(path, "it is a link that leads back to itself") from error
        error.filename = path
        raise


_met: dict[str, str] | None = None
"""Folders of a search, and where their files are; empty for one in which files are not where their paths say."""


def begin_search() -> None:
    """Look at every folder once until :func:`end_search`, and not at each on the way to every file in it."""
    global _met  # noqa: PLW0603 - a process searches once at a time
    _met = {}


def end_search() -> None:
    """Look at every folder again."""
    global _met  # noqa: PLW0603
    _met = None


def _straight(path: str) -> str:
    """The absolute path of a file in a folder that was looked at, to which no link leads; empty for any other.

    The last part of it may be a link, which is not followed when the file is opened.
    """
    if _met is None or not _STOPS_AT_LINKS:
        return ""
    folder, name = os.path.split(path)
    place = _met.get(folder)
    if place is None:
        shown = os.path.abspath(folder)
        is_straight = os.path.realpath(shown) == shown and ".git" not in shown.lower().split(os.sep)
        place = _met[folder] = os.path.join(shown, "") if is_straight else ""
    return place + name if place and name not in _NO_FILES and name.lower() != ".git" else ""


_NO_NAME = "no file can have this name"
_STOPS_AT_LINKS = hasattr(os, "O_NOFOLLOW")
_NO_FILES = ("", os.curdir, os.pardir)


def resolved(path: str) -> str:
    """The absolute path of a file or folder without links.

    Raises:
        RefusedError: a link leads out of the repository that it lies in, or the path is inside ``.git``.
    """
    shown = os.path.abspath(path)
    try:
        real = os.path.realpath(shown)
    except ValueError as error:
        raise RefusedError(path, _NO_NAME) from error
    if real != shown:
        check_links(path, shown)
    if ".git" in real.lower().split(os.sep):
        root, _ = repository(os.path.dirname(real))
        if ".git" in os.path.relpath(real, root).lower().split(os.sep):
            raise RefusedError(path, "it lies inside `.git`")
    return real


def repository(folder: str) -> tuple[str, bool]:
    """The nearest ancestor with ``.git`` (a folder, or a file in a worktree); else the folder itself."""
    found = _repository(folder)
    note("repository", folder, repr(found))
    return found


def _repository(folder: str) -> tuple[str, bool]:
    files = in_memory()
    if files is not None:
        return files.root, True
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


def holds(notes: Iterable[Any]) -> bool:
    """Whether every answer is today's. A note is a question, a path, a limit in bytes and the answer."""
    return all(says(question, path, limit) == answer for question, path, limit, answer in notes)


def says(question: str, path: str, limit: int) -> str:
    """Today's answer to a question."""
    return QUESTIONS[question](path, limit)


def _start(path: str, limit: int) -> str:
    try:
        return digest(read_start(path, limit))
    except OSError as error:
        return described(error)


QUESTIONS: dict[str, Callable[[str, int], str]] = {
    "start": _start,
    "is_file": lambda path, limit: str(is_file(path)),
    "is_folder": lambda path, limit: str(is_folder(path)),
    "exists": lambda path, limit: str(exists(path)),
    "real_path": lambda path, limit: real_path(path),
    "names": lambda path, limit: repr(names_in(path)),
    "repository": lambda path, limit: repr(repository(path)),
    "today": lambda path, limit: today(),
}
"""What can be asked of files, under the names of the notes."""
