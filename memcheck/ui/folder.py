"""The folder that ``memcheck ui`` shows: its plans, their bytes, and where they are written back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

from memcheck.config.discover import find_plans
from memcheck.config.find import Configurations, Gate
from memcheck.edge.in_memory import FilesInMemory, looking_at
from memcheck.edge.opener import RefusedError, digest, is_inside, look_at, read_whole, refuse_way_out, repository
from memcheck.errors import UsageError
from memcheck.live.requests import LARGEST, Workspace, checked_name
from memcheck.plan.text import shown_path
from memcheck.record import Record
from memcheck.result import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

MOST_PLANS = 2000
"""Plans that are listed."""
Write = Callable[[str, bytes], None]
"""Puts bytes in the place of a file; raises OSError."""


class PlanOfFolder(Record):
    """One plan file that may be opened and saved."""

    path: str
    """Relative to the folder's top, with forward slashes."""
    digest: str
    """A hash of the bytes. Only a file that still has it is written."""


class ChangedOnDiskError(UsageError):
    """A file that another program wrote since it was read. ``text`` is what it holds now."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"`{path}` was changed on the disk since it was opened", "compare both, then save again")
        self.text = text


class Folder:
    """A folder with plans, or one plan of a folder.

    ``top`` is the repository's top, or the folder itself where it is in no repository. Names of files are relative to
    it. What a plan refers to is read from below ``top``; only plans that were listed are written.
    """

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            raise UsageError(f"there is no file or folder {path}", "name a plan or a folder")
        self.named = os.path.abspath(path)
        start = self.named if os.path.isdir(self.named) else os.path.dirname(self.named)
        self.top = os.path.realpath(repository(os.path.realpath(start))[0])
        self._listed: set[str] = set()

    def plans(self) -> list[PlanOfFolder]:
        """Every plan that ``memcheck check`` would find below the named path, at most :data:`MOST_PLANS`."""
        found: list[PlanOfFolder] = []
        for each in find_plans([self.named]):
            if isinstance(each, Unreadable) or len(found) == MOST_PLANS:
                continue
            name = shown_path(os.path.relpath(os.path.realpath(each.path), self.top))
            if not name.startswith("../"):
                found.append(PlanOfFolder(name, digest(each.data)))
        self._listed.update(each.path for each in found)
        return found

    def read(self, name: str) -> bytes:
        """The bytes of a file below the top.

        Raises:
            UsageError: the name leads out of the folder, or the file cannot be read.
        """
        try:
            return read_whole(self._path(name), LARGEST)
        except OSError as error:
            raise UsageError(f"cannot read `{name}`: {error.strerror or error}") from None

    def save(self, name: str, data: bytes, known: str, write: Write) -> str:
        """Write a plan that was listed and still is what ``known`` is the digest of; returns the new digest.

        Raises:
            ChangedOnDiskError: the file holds something else by now.
            UsageError: the file was not listed, or cannot be written.
        """
        if name not in self._listed:
            raise UsageError(f"`{name}` is not among the plans of this folder", "only a plan that was listed is saved")
        before = self.read(name)
        if digest(before) != known:
            raise ChangedOnDiskError(name, before.decode("utf-8", "replace"))
        path = self._path(name)
        try:
            refuse_way_out(path)
            write(path, data)
        except OSError as error:
            raise UsageError(f"cannot write `{name}`: {error.strerror or error}") from None
        return digest(data)

    def gate(self) -> Gate:
        """How strictly to check: the configuration that governs the named path."""
        path = os.path.join(self.named, "plan.yaml") if os.path.isdir(self.named) else self.named
        return Gate(settings=Configurations().of(path))

    def _path(self, name: str) -> str:
        """The absolute path of a name.

        Raises:
            UsageError: the name is none, or it leads out of the folder.
        """
        path = os.path.join(self.top, *checked_name(name).split("/"))
        if not is_inside(os.path.realpath(path), self.top):
            raise UsageError(f"`{name}` leads out of the folder", "name a file of the folder")
        return path


class FolderWorkspace(Workspace):
    """A workspace whose files are those that the page sent, and the folder's for all other names."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self._folder = folder

    def data(self, name: str) -> bytes:
        """The bytes of a file: those that were sent, else those on the disk."""
        return super().data(name) if name in self else self._folder.read(name)

    def reading(self) -> AbstractContextManager[None]:
        """A block in which memcheck reads the files that were sent and, for other names, the folder's."""
        return looking_at(_Overlay(self._files, self._folder))


class _Overlay(FilesInMemory):
    """The files that were sent, and below them the folder on the disk."""

    def __init__(self, sent: Mapping[str, bytes], folder: Folder) -> None:
        super().__init__(_SentThenDisk(sent, folder))
        self._sent, self._top = sent, folder.top

    def is_folder(self, path: str) -> bool:
        """Whether a path is a folder below the top, or leads to a file that was sent."""
        name = self.name_of(path)
        if name == "..":
            return False
        known = any(each.startswith(f"{name}/") for each in self._sent)
        return known or os.path.isdir(os.path.join(self._top, name))


class _SentThenDisk(Mapping[str, bytes]):
    """Bytes by name: of the files that were sent, else of regular files below the folder's top."""

    def __init__(self, sent: Mapping[str, bytes], folder: Folder) -> None:
        self._sent, self._folder = sent, folder

    def __getitem__(self, name: str) -> bytes:
        if name in self._sent:
            return self._sent[name]
        before = look_at(None)  # the disk itself is asked
        try:
            return self._folder.read(name)
        except (UsageError, RefusedError):
            raise KeyError(name) from None
        finally:
            look_at(before)

    def __contains__(self, name: object) -> bool:
        if name in self._sent:
            return True
        return isinstance(name, str) and bool(name) and os.path.isfile(os.path.join(self._folder.top, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent)

    def __len__(self) -> int:
        return len(self._sent)
