"""A verdict that an earlier run reached is taken in place of a new check, if all that it depends on is the same.

Verdicts lie in the user's own cache directory, in one small file each, as JSON that gives the same results back byte
for byte. A directory or a file that another user owns or can write is not used. Neither is a file that was changed
after writing. Nothing here raises: a verdict that cannot be kept or found is reached anew.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

from memcheck import __version__
from memcheck.accounts.dossier import Dossier, OnGpu, RankDevice
from memcheck.accounts.estimate import Estimate, Formula, HostMoment, Instant, Pools, RankEstimate, TensorGroup
from memcheck.cli.judging import FileVerdict, Gates
from memcheck.config.find import Gate, PlanFile
from memcheck.edge import json_text, opener
from memcheck.edge.opener import digest, heard, holds, is_inside, listen, repository
from memcheck.job.types import Assumption, Ground
from memcheck.plan.finding import Edit, FileEdits, Finding, Location, Remedy, Span
from memcheck.rules.result import Hidden, PlanResult, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


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


FORMAT = 1
"""Raised when an entry of the same content would be read another way."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
        self._folder = opened(location() if path is None else path, make=make)
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
        text = fetch(self._folder, name)
        if text is None:
            self._grows = True
            return None

        try:
            notes, extra, results = json_text.parsed(text)
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

        text = written(results)
        if text is not None:
            keep(self._folder, name, f"[{json_text.written(notes)},{json_text.written(extra)},{text}]")
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
        text = None if self._folder is None else fetch(self._folder, name, LARGEST_RUN)
        if text is None:
            return None
        try:
            notes, told = json_text.parsed(text)
            return told if holds(notes) else None
        except (TypeError, ValueError, KeyError, RecursionError, StopIteration):
            return None

    def keep_run(self, name: str, told: object) -> None:
        """Keep what a run says, of which every verdict is kept, with the answers that they rest on."""
        if self._folder is None or self._answers is None or len(self._answers) > MOST_RUN_NOTES:
            return
        notes = [[*asked, answer] for asked, answer in self._answers.items()]
        keep(self._folder, name, json_text.written([notes, told]), LARGEST_RUN)
        self._grows = self._has_runs = True

    def close(self) -> None:
        """End the run: what was used least lately goes, if that is too much."""
        if self._folder is not None:
            if self._grows:
                bound(self._folder, has_runs=self._has_runs)
            os.close(self._folder)
            self._folder = None


def _digest(text: str) -> str:
    return opener.digest(text.encode("utf-8", "surrogatepass"))


if TYPE_CHECKING:
    Answer = tuple[list[PlanResult], list[str]]


class Keeper:
    """The kept verdicts of a run, which need no new check, and the gates that the others are checked with."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self._verdicts = Verdicts()

    def found(self, files: Iterator[PlanFile | Unreadable]) -> Iterator[PlanFile | Unreadable | FileVerdict]:
        """The files, those with a kept verdict as that."""
        for file in files:
            known = self._found(file) if isinstance(file, PlanFile) and self._verdicts.usable else None
            yield file if known is None else known

    def _found(self, file: PlanFile) -> FileVerdict | None:
        found = self._verdicts.find(self._name(file))
        if found is None:
            return None
        results, met = found
        self._gates.add_met(_read_met(met))
        return FileVerdict(file, results, [])

    def judge(self, file: PlanFile, check_file: Callable[[str, bytes, Gate], Answer]) -> Answer:
        """Judge a file, and keep the verdict."""
        gate = self._gates.of(file.path)
        if not self._verdicts.usable:
            return check_file(file.path, file.data, gate)
        before = self._gates.take_met()
        listen()
        try:
            results, traces = check_file(file.path, file.data, gate)
        finally:
            notes, met = heard(), self._gates.take_met()
            self._gates.add_met(before)
            self._gates.add_met(met)
        if not traces:
            self._verdicts.keep(self._name(file), results, notes, _written_met(met))
        return results, traces

    @property
    def verdicts(self) -> Verdicts:
        """What is kept."""
        return self._verdicts

    def close(self) -> None:
        """End the run."""
        self._verdicts.close()

    def _name(self, file: PlanFile) -> str:
        gate = self._gates.of(file.path)
        accepted = () if gate.baseline is None else self._gates.accepted(file.path)
        return self._verdicts.name(file.path, file.data, gate, accepted)


def _written_met(met: dict[str, Any]) -> dict[str, list[list[object]]]:
    return {file: [list(entry) for entry in sorted(entries, key=repr)] for file, entries in met.items() if entries}


def _read_met(met: Any) -> dict[str, Any]:
    """What baselines accepted; raises TypeError for anything else."""
    if not met:
        return {}
    from memcheck.cli.review.baseline import AcceptedFinding

    return {file: {AcceptedFinding(*entry) for entry in entries} for file, entries in met.items()}


if TYPE_CHECKING:
    Shape = type | tuple["Shape", ...] | list["Shape"]
    """A record, a tuple of so many shapes, or a tuple of any number of one shape (a list of it)."""

PLAIN: tuple[()] = ()
"""A tuple of what JSON has."""

FIELDS: dict[type, dict[str, Any]] = {
    PlanResult: {
        "estimate": Estimate,
        "assumptions": [Assumption],
        "findings": [Finding],
        "hidden": [Hidden],
        "rests_on": [Ground],
        "dossier": Dossier,
    },
    Estimate: {
        "interval_bytes": PLAIN,
        "needed_interval_bytes": PLAIN,
        "ranks": [RankEstimate],
        "largest": [TensorGroup],
        "formulas": [Formula],
        "host_components": [PLAIN],
        "host_moments": [HostMoment],
    },
    RankEstimate: {"pools": Pools, "instants": [Instant], "ledger": [TensorGroup], "formulas": [Formula]},
    HostMoment: {"components": [PLAIN]},
    Hidden: {"finding": Finding},
    Finding: {"location": Location, "related": [(None, Location)], "fix": [Edit], "remedies": [Remedy]},
    Location: {"span": Span},
    Edit: {"span": Span},
    FileEdits: {"edits": [Edit]},
    Remedy: {
        "edits": [Edit],
        "interval_bytes": PLAIN,
        "needed_interval_bytes": PLAIN,
        "elsewhere": [FileEdits],
    },
    Dossier: {"ranks": [RankDevice], "gpus": [OnGpu]},
    OnGpu: {"assumed": PLAIN},
}
"""The fields that are more than JSON has; a record that is not listed has none. None, where a field may be, stays."""


def written(results: list[PlanResult]) -> str | None:
    """The results as one line of JSON; None where they would not come back as they are."""
    try:
        text = json_text.written(_with_files(results))
        again = read(json_text.parsed(text))
        one, other = (repr([each._replace(sources={}) for each in those]) for those in (again, results))
        same = one == other and all(a.sources == dict(b.sources) for a, b in zip(again, results, strict=True))
    except (TypeError, ValueError, RecursionError, IndexError):
        return None
    return text if same else None


def read(found: Any) -> list[PlanResult]:
    """The results that JSON holds; raises TypeError, ValueError, KeyError or IndexError where it holds none."""
    files, results = found
    lines = [tuple(each) for each in files]
    return [_with_sources(_READ_RESULT(each), lines) for each in results]


def _with_files(results: list[PlanResult]) -> list[object]:
    """The lines of every file, and the results, which name a file's lines by their number: many share them."""
    files: list[tuple[str, ...]] = []
    numbers: dict[int, int] = {}
    made: list[object] = []
    for result in results:
        sources: dict[str, int] = {}
        for path, lines in result.sources.items():
            if id(lines) not in numbers:
                numbers[id(lines)] = len(files)
                files.append(lines)
            sources[path] = numbers[id(lines)]
        made.append([*result[:_SOURCES], sources, *result[_SOURCES + 1 :]])
    return [files, made]


_SOURCES = PlanResult._fields.index("sources")


def _with_sources(result: PlanResult, files: list[tuple[str, ...]]) -> PlanResult:
    numbers: Any = result[_SOURCES]
    return result._replace(sources={path: files[number] for path, number in numbers.items()})


def _type_reader(shape: Any) -> Callable[[Any], Any]:
    """What makes a value of one shape from JSON."""
    if isinstance(shape, list):
        if shape[0] is PLAIN:
            return lambda value: tuple([tuple(each) for each in value]) if value else ()
        each = _type_reader(shape[0])
        return lambda value: tuple([each(item) for item in value]) if value else ()
    if shape == PLAIN and isinstance(shape, tuple):
        return tuple
    if isinstance(shape, tuple):
        parts = [None if part is None else _type_reader(part) for part in shape]
        return lambda value: tuple([part(item) if part else item for part, item in zip(parts, value, strict=True)])
    return _record_reader(shape)


def _record_reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a record from the list of its fields, which it changes."""
    count = len(kind._fields)
    places = [(kind._fields.index(field), _type_reader(shape)) for field, shape in FIELDS.get(kind, {}).items()]
    new = tuple.__new__

    def make(values: Any) -> Any:
        if values is None:
            return None
        if type(values) is not list or len(values) != count:
            raise TypeError(f"no {kind.__name__}")
        for place, part in places:
            values[place] = part(values[place])
        return new(kind, values)

    return make


_READ_RESULT = _record_reader(PlanResult)
