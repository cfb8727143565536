"""What memcheck itself is: a verdict that another one reached is none of this one's.

Verdicts by what they rest on: a plan's bytes, how it is judged, what files said meanwhile, and memcheck itself.
"""

from __future__ import annotations

import os
import sys

from memcheck import __version__
from memcheck.cli.cache import store
from memcheck.config.gate import Gate
from memcheck.edge import opener, own_json
from memcheck.edge.questions import holds
from memcheck.result import PlanResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


FORMAT = 1
"""Raised when an entry of the same content would be read another way."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
READERS = ("yaml", "tomlkit", "jsonschema")
"""Packages through whose hands plans, remedies and messages go."""


def identity() -> str:
    """Memcheck's version and files, Python's version, and the packages that read plans."""
    return repr((FORMAT, __version__, sys.version, sys.platform, _own_files(), [_reader(name) for name in READERS]))


def _own_files() -> object:
    """What changes when the package does: an installed one's record, or every file of a checkout."""
    record = os.path.join(os.path.dirname(PACKAGE), f"memcheck-{__version__}.dist-info", "RECORD")
    try:
        return PACKAGE, _state(os.stat(record))
    except OSError:
        return PACKAGE, _files(PACKAGE), _files(os.path.join(os.path.dirname(PACKAGE), "schemas"))


def _files(folder: str) -> list[object]:
    found: list[object] = []
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in sorted(entries, key=lambda each: each.name):
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != "__pycache__":
                            waiting.append(entry.path)
                    else:
                        found.append((entry.name, *_state(entry.stat())))
        except OSError:  # noqa: PERF203
            found.append(None)
    return found


def _state(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _reader(name: str) -> object:
    """The package that an import of this name would find in a folder of the search path."""
    for folder in sys.path:
        try:
            return folder, _state(os.stat(os.path.join(folder, name, "__init__.py")))
        except OSError:  # noqa: PERF203
            continue
    return None


if TYPE_CHECKING:
    Note = tuple[str, str, int, str]
    """A question of files, its path, its limit in bytes, and the answer."""

MOST_NOTES = 64
"""Answers of files that one verdict may depend on; a verdict that depends on more is not kept."""
MOST_RUN_NOTES = 4096
"""Answers of files that a whole run may depend on; a run that depends on more is not kept as a whole."""


class Verdicts:
    """The kept verdicts of one user, in one run."""

    def __init__(self, path: str | None = None, *, make: bool = True) -> None:
        """Open the directory, or do without where it cannot be trusted."""
        self._folder = store.opened(store.location() if path is None else path, make=make)
        self._basis = "" if self._folder is None else _digest(f"{identity()}\n{os.getcwd()}")
        self._said: dict[int, tuple[Gate, str]] = {}
        """How strictly the gates that were met judge; files mostly share one."""
        self._grows = False
        """Whether this run keeps something, in this process or in another process of the run."""
        self._has_runs = False
        """Whether this run was kept as a whole."""
        self.kept = 0
        """The files whose verdicts this process found, or keeps."""
        self._answers: dict[tuple[str, str, int], str] | None = {}
        """All answers of files that those verdicts depend on; None where two answers contradict each other."""

    @property
    def usable(self) -> bool:
        """Whether there is a directory."""
        return self._folder is not None

    def name(self, path: str, data: bytes, gate: Gate, accepted: object) -> str:
        """Where the verdict on a file is kept. ``accepted``: what the baseline holds for the file."""
        known = self._said.get(id(gate))
        if known is None or known[0] is not gate:
            strictness = repr([value if not callable(value) else True for value in gate])
            known = self._said[id(gate)] = gate, _digest(f"{self._basis}\n{strictness}")
        said = f"{known[1]}\n{path!r}\n{accepted!r}\n"
        return opener.digest(said.encode("utf-8", "surrogatepass") + data)

    def find(self, name: str) -> tuple[list[PlanResult], object] | None:
        """The results under a name, and the other value given to :meth:`keep`; None where no valid verdict is kept."""
        if self._folder is None:
            return None
        text = store.fetch(self._folder, name)
        if text is None:
            self._grows = True
            return None
        from memcheck.cli.cache.text import read

        try:
            notes, extra, results = own_json.parsed(text)
            if holds(notes):
                found = read(results), extra
                self._count(notes)
                return found
        except (TypeError, ValueError, KeyError, IndexError, RecursionError, StopIteration):
            pass
        self._grows = True
        return None

    def keep(self, name: str, results: list[PlanResult], notes: list[Note], extra: object) -> None:
        """Keep results that are verdicts, all of them, with the answers that they rest on."""
        if self._folder is None or len(notes) > MOST_NOTES or any(each.estimate is None for each in results):
            return
        from memcheck.cli.cache.text import written

        text = written(results)
        if text is not None:
            store.keep(self._folder, name, f"[{own_json.written(notes)},{own_json.written(extra)},{text}]")
            self._count(notes)

    def _count(self, notes: list[Note]) -> None:
        self.kept += 1
        for question, path, limit, answer in notes:
            if self._answers is not None and self._answers.setdefault((question, path, limit), answer) != answer:
                self._answers = None  # a file changed meanwhile

    def run_name(self, said: str, files: Iterable[tuple[str, bytes]]) -> str:
        """Where the reports of a whole run are kept. ``said``: how it judges, and what it writes."""
        summed = opener.summing(f"run\n{self._basis}\n{said}\n".encode("utf-8", "surrogatepass"))
        for kind, data in files:
            summed.update(f"{kind}\n{len(data)}\n".encode("utf-8", "surrogatepass"))
            summed.update(data)
        return summed.hexdigest()

    def find_run(self, name: str) -> Any:
        """What :meth:`keep_run` was given; None where nothing is kept that still holds."""
        text = None if self._folder is None else store.fetch(self._folder, name, store.LARGEST_RUN)
        if text is None:
            return None
        try:
            notes, told = own_json.parsed(text)
            return told if holds(notes) else None
        except (TypeError, ValueError, KeyError, RecursionError, StopIteration):
            return None

    def keep_run(self, name: str, told: object) -> None:
        """Keep what a run says, of which every verdict is kept, with the answers that they rest on."""
        if self._folder is None or self._answers is None or len(self._answers) > MOST_RUN_NOTES:
            return
        notes = [[*asked, answer] for asked, answer in self._answers.items()]
        store.keep(self._folder, name, own_json.written([notes, told]), store.LARGEST_RUN)
        self._grows = self._has_runs = True

    def close(self) -> None:
        """End the run: what was used least lately goes, if that is too much."""
        if self._folder is not None:
            if self._grows:
                store.bound(self._folder, has_runs=self._has_runs)
            os.close(self._folder)
            self._folder = None


def _digest(text: str) -> str:
    return opener.digest(text.encode("utf-8", "surrogatepass"))
