"""Judges the files of a run, in this process or, where there are enough of them, in several (``check --jobs``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import chain

from memcheck.cli.options import CheckOptions
from memcheck.config.discover import PlanFile
from memcheck.record import Record
from memcheck.result import PlanResult, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.cli.gate import Gates
    from memcheck.cli.kept import Keeper

MANY = 16
"""Files from which on a run is kept as a whole, too; fewer verdicts are read as fast one by one."""
MOST = 8
"""The most processes that ``--jobs auto`` starts."""
WORTH = {"fork": 64, "spawn": 256}
"""Files of the usual size from which on several processes are started, by how that is done.

Beside its start a process costs what it has to find out anew: plans of one model share most of their prices.
"""
SWITCH = "MEMCHECK_NO_CACHE"
"""A variable of the environment: set to anything, no verdict is kept, or taken from an earlier run."""
USUAL_BYTES = 2048
"""The size of a file with one plan; a larger one counts for as many as fit into it."""


class FileVerdict(Record):
    """One file with what became of it."""

    file: PlanFile | Unreadable
    plans: list[PlanResult]
    traces: list[str]
    """Tracebacks of memcheck's own failures on the file."""


def verdicts(
    files: Iterator[PlanFile | Unreadable], gates: Gates, options: CheckOptions, keeper: Keeper | None = None
) -> Iterator[FileVerdict]:
    """The verdict on every file, in their order, however many processes judge them.

    Raises:
        ConfigurationError: a configuration file that cannot be used.
    """
    return _verdicts(files if keeper is None else keeper.found(files), gates, options, keeper)


def keeper_of(gates: Gates, options: CheckOptions) -> Keeper | None:
    """What keeps verdicts; None where none are to be kept."""
    if options.no_cache or os.environ.get(SWITCH):
        return None
    from memcheck.cli.kept import Keeper

    return Keeper(gates)


def _verdicts(
    files: Iterator[PlanFile | Unreadable | FileVerdict], gates: Gates, options: CheckOptions, keeper: Keeper | None
) -> Iterator[FileVerdict]:
    jobs = usable_cores() if options.jobs is None else options.jobs
    ahead: list[PlanFile | Unreadable | FileVerdict] = []
    if jobs > 1:
        method, size = start_method(), 0
        for file in files:
            ahead.append(file)
            size += size_of(file)
            if size >= WORTH[method]:
                from memcheck.cli.pool import Pool

                yield from Pool(method, jobs, gates, options, keeper).verdicts(chain(ahead, files))
                return
    for file in chain(ahead, files):
        yield judged(file, gates, keeper)


def judged(file: PlanFile | Unreadable | FileVerdict, gates: Gates, keeper: Keeper | None = None) -> FileVerdict:
    """The verdict on one file, reached in this process where it is none yet."""
    if isinstance(file, FileVerdict):
        return file
    from memcheck.judge import check_file, refused

    if isinstance(file, PlanFile):
        if keeper is not None:
            return FileVerdict(file, *keeper.judge(file))
        return FileVerdict(file, *check_file(file.path, file.data, gates.of(file.path)))
    return FileVerdict(file, [refused(file, gates.of(file.path))] if file.refused else [], [])


def size_of(file: PlanFile | Unreadable | FileVerdict) -> int:
    """How many files of the usual size a file counts for."""
    return 1 + len(file.data) // USUAL_BYTES if isinstance(file, PlanFile) else 0


def usable_cores() -> int:
    """How many processes ``auto`` is: one for each core that this one may use, up to ``MOST``."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)


def start_method() -> str:
    """``fork`` where that is quick and safe: on Linux, and with no other thread that may hold a lock."""
    threading = sys.modules.get("threading")
    alone = threading is None or threading.active_count() == 1
    return "fork" if sys.platform == "linux" and alone else "spawn"
