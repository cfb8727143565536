"""A short way to this package's own modules, for a process that is memcheck's.

Python's finder asks its hooks, the folder and five suffixes for every module, and its loader reads the bytecode with
ten calls of the system. A check imports some 180 modules, so that this was a fifth of its time. Here the name alone
tells the file. memcheck trusts what Python trusts: the bytecode in the source's ``__pycache__``, as long as it has the
source's date and size. All other cases (no bytecode yet, another kind of it, an archive) are left to Python.

A module by its name, without ``importlib``: that imports ``warnings``, which takes longer than this.
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader
from _imp import _fix_co_filename  # type: ignore[attr-defined]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Any


PREFIX = __name__.partition(".")[0] + "."
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MOST_BYTES = 1 << 16
"""Bytecode from this size on is left to Python: it is read at once."""
TIMED = bytes(4)
"""The flags of bytecode that is checked against the date and size of its source."""
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def shorten() -> None:
    """Find this package's modules the short way from now on, where Python keeps bytecode as it usually does."""
    usual = not sys.flags.optimize and sys.pycache_prefix is None
    if usual and OwnModules not in sys.meta_path:
        sys.meta_path.insert(0, OwnModules)


class OwnModules:
    """The finder; see the module."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where a module of the package is; None for any other, and for what is no plain file."""
        del path, target
        if not name.startswith(PREFIX):
            return None
        place = f"{FOLDER}{os.sep}{name[len(PREFIX) :].replace('.', os.sep)}"
        source, package = f"{place}.py", False
        try:
            found = os.stat(source)
        except OSError:
            source, package = f"{place}{os.sep}__init__.py", True
            try:
                found = os.stat(source)
            except OSError:
                return None
        loader = OwnLoader(name, source)
        loader.seen = found
        folder, _, file = source.rpartition(os.sep)
        loader.stored = f"{folder}{os.sep}__pycache__{os.sep}{file[:-3]}.{sys.implementation.cache_tag}.pyc"
        spec = ModuleSpec(name, loader, origin=source, is_package=package)
        if package:
            spec.submodule_search_locations = [place]
        spec.has_location = True
        spec.cached = loader.stored
        return spec


class OwnLoader(SourceFileLoader):
    """Runs a module's bytecode; see the module."""

    seen: os.stat_result
    stored: str

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        code = self._code()
        if code is None:
            super().exec_module(module)
        else:
            exec(code, module.__dict__)  # noqa: S102 - what importing is

    def _code(self) -> CodeType | None:
        """The stored bytecode, if it belongs to the source as it is."""
        try:
            file = os.open(self.stored, _FLAGS)
        except OSError:
            return None
        try:
            data = os.read(file, MOST_BYTES)
        finally:
            os.close(file)
        date, size = int(self.seen.st_mtime) & 0xFFFFFFFF, self.seen.st_size & 0xFFFFFFFF
        head = MAGIC_NUMBER + TIMED + date.to_bytes(4, "little") + size.to_bytes(4, "little")
        if len(data) == MOST_BYTES or not data.startswith(head):
            return None
        code: CodeType = marshal.loads(memoryview(data)[len(head) :])  # noqa: S302 - as Python's own loader does
        if code.co_filename != self.path:  # compiled by another name of the folder, as a build does
            _fix_co_filename(code, self.path)
        return code


def import_module(name: str) -> Any:
    """The module of this full name, loaded if it is not yet."""
    __import__(name)
    return sys.modules[name]
