"""Which files decide what a plan means: itself, what it extends, the configs it names, memcheck's configuration.

The files of one commit, read from git's objects without touching the working tree.

Earlier plans on disk, with every file that decides them and nothing else, so that they are read like any plan.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable

from memcheck.cli.review.history.git import Base, answer, converse
from memcheck.config.find import LARGEST
from memcheck.edge.libyaml import yaml
from memcheck.errors import UsageError
from memcheck.plan import finding as codes
from memcheck.plan.compose import ComposeError, Composer
from memcheck.plan.places import Document
from memcheck.plan.text import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen


CONFIGURATION = ("memcheck.toml", "pyproject.toml")


def files_of(document: Document) -> set[str]:
    """Paths, spelled like the document's own, of what the plan was read from and of what it names."""
    folder = os.path.dirname(document.path)
    return set(document.sources) | {os.path.normpath(os.path.join(folder, name)) for name in named(document.values)}


def named(values: object) -> set[str]:
    """The other files that the values of a plan name, relative to the plan; a folder may stand for its config.json.

    An Accelerate config that a plan takes as its source names DeepSpeed's in turn.
    """
    if not isinstance(values, dict):
        return set()
    model, source, engine = values.get("model"), values.get("source"), values.get("deepspeed_config")
    names = [values.get("extends"), model.get("config") if isinstance(model, dict) else None]
    names += list(source.values()) if isinstance(source, dict) else []
    names.append(engine.get("deepspeed_config_file") if isinstance(engine, dict) else None)
    found = {name for name in names if isinstance(name, str) and name and not os.path.isabs(name)}
    if isinstance(model, dict) and isinstance(config := model.get("config"), str) and config in found:
        found.add(os.path.join(config, "config.json"))
    return found


def is_broken(document: Document) -> bool:
    """Whether a file that the plan extends could not be read, so that the plan's files are not all known."""
    return any(finding.code == codes.BROKEN_EXTENDS.code for finding in document.findings)


def configuration_files(path: str) -> list[str]:
    """Where the configuration of a file may be: its folder, given from the repository's root, and those above it."""
    folder, found = os.path.dirname(path), []
    while True:
        found += [os.path.join(folder, name) for name in CONFIGURATION]
        if not folder:
            return found
        folder = os.path.dirname(folder)


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


def lay_out(tree: Tree, plans: list[str], folder: str) -> None:
    """Write earlier plans into an empty folder at their paths from the root, with what they name, and so on.

    What is missing in the tree stays missing: reading the plan then says so.
    """
    # Plans may not extend beyond the repository: the folder has to look like one.
    os.mkdir(os.path.join(folder, ".git"))
    seen = {*plans, *(name for plan in plans for name in configuration_files(plan))}
    waiting = list(seen)
    while waiting:
        path = waiting.pop()
        data = tree.read(path, LARGEST)  # and one byte more, which says that it is too large
        if data is None:
            continue
        _write(folder, path, data)
        if not path.endswith((".toml", ".json")):
            for name in _names(path, data):
                inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
                if inside not in seen:
                    seen.add(inside)
                    waiting.append(inside)


def lay_out_files(tree: Tree, paths: Iterable[str], folder: str, limit: int) -> None:
    """Write single files, at their paths from the root; what is missing in the tree stays missing.

    A file of more than ``limit`` bytes is cut after ``limit + 1`` bytes.
    """
    for path in paths:
        data = tree.read(path, limit)
        if data is not None:
            _write(folder, path, data)


def _write(folder: str, path: str, data: bytes) -> None:
    target = os.path.join(folder, *path.split("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(data)


def _names(path: str, data: bytes) -> set[str]:
    """What a plan file names; nothing beyond the place where it cannot be read."""
    text, finding = decode(path, data)
    found: set[str] = set()
    if finding is None:
        try:
            for document in Composer(text).documents():
                found |= named(document.values)
        except (ComposeError, yaml.YAMLError):
            pass
    return {name.replace(os.sep, "/") for name in found}
