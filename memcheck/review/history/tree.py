"""The files of one commit, read from git's objects without touching the working tree."""

from __future__ import annotations

import os
import posixpath

from memcheck.errors import UsageError
from memcheck.review.history.command import converse
from memcheck.review.history.git import Base, answer

TYPE_CHECKING = False
if TYPE_CHECKING:  # only for annotations
    from subprocess import Popen

SYMLINK = b"120000"
MAX_LINKS = 8
LONGEST_LINK = 4096
"""Bytes of the path that a link holds, as far as the system follows one."""
_PIECE = 2**16
_NO_NAMES = frozenset(("", ".", "..", ".git"))


class Tree:
    """Paths from the repository's root to bytes. One git process answers reads until ``close`` ends it."""

    def __init__(self, base: Base) -> None:
        self._entries: dict[str, tuple[bytes, bytes]] = {}
        listing = answer(base.root, "ls-tree", "-r", "-z", "--full-tree", "--end-of-options", base.commit)
        for line in listing.split(b"\0"):
            about, _, name = line.partition(b"\t")
            if name:
                mode, kind, identity = about.split()
                path = os.fsdecode(name)
                if kind == b"blob" and _can_be_checked_out(path):  # the other kind is a submodule, a repository itself
                    self._entries[path] = (mode, identity)
        self._root = base.root
        self._process: Popen[bytes] | None = None

    def close(self) -> None:
        """End the process; the next read starts another."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def __contains__(self, path: str) -> bool:
        return path in self._entries

    def below(self, folder: str) -> list[str]:
        """The files in a folder and in its folders, sorted; everything for the empty path."""
        start = f"{folder}/" if folder else ""
        return sorted(path for path in self._entries if path.startswith(start))

    def read(self, path: str, limit: int) -> bytes | None:
        """The first ``limit`` bytes of a file and, where it is longer, one more; None if there is no such file.

        Symbolic links that stay in the tree are followed.
        """
        for _ in range(MAX_LINKS):
            if path not in self._entries:
                return None
            mode, identity = self._entries[path]
            data = self._object(identity, LONGEST_LINK if mode == SYMLINK else limit)
            if mode != SYMLINK:
                return data
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), os.fsdecode(data)))
        return None

    def place(self, path: str) -> str:
        """Where a path leads through folders that the commit has as links; the file itself may be a link."""
        for _ in range(MAX_LINKS):
            parts = path.split("/")
            above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
            link = next((each for each in above if each in self._entries), None)
            if link is None:
                return path
            mode, identity = self._entries[link]
            if mode != SYMLINK:  # a file, below which there is nothing
                return path
            target = posixpath.join(posixpath.dirname(link), os.fsdecode(self._object(identity, LONGEST_LINK)))
            path = posixpath.normpath(target + path[len(link) :])
        return path

    def _object(self, identity: bytes, limit: int) -> bytes:
        if self._process is None:
            # The same objects as `git show COMMIT:PATH`, without a process for each.
            self._process = converse(self._root, "cat-file", "--batch")
        send, receive = self._process.stdin, self._process.stdout
        if send is None or receive is None:
            raise UsageError("git cat-file has no pipes")
        send.write(identity + b"\n")
        send.flush()
        head = receive.readline().split()
        if len(head) != 3:  # `<id> missing`, as in a partial clone, which would ask its remote
            help = "fetch it first: memcheck itself fetches nothing"
            raise UsageError(f"git lacks object {identity.decode()[:12]}", help)
        size = int(head[2]) + 1  # a line end follows
        data = receive.read(min(size, limit + 1))
        left = size - len(data)
        while left > 0 and (piece := receive.read(min(left, _PIECE))):
            left -= len(piece)
        return data[: size - 1]


def _can_be_checked_out(path: str) -> bool:
    """Whether git would write a file of this name into a working tree: objects made by hand may have any name."""
    return _NO_NAMES.isdisjoint(path.replace(os.sep, "/").lower().split("/"))
