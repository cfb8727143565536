"""The work of one process of ``check --jobs``: it checks the files that come through a pipe."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from memcheck.cli.gate import Gates, configurations_of
from memcheck.cli.jobs import judged, keeper_of
from memcheck.cli.options import CheckOptions
from memcheck.config.discover import PlanFile
from memcheck.result import PlanResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.cli.kept import Keeper

READY = "ready"
"""The first thing that a process says."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits meanwhile, and a process that is started in it hears none before it says so."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def work(pipe: Connection, options: CheckOptions, inherited: Iterable[Connection] = ()) -> None:
    """Answer every list of files until the pipe ends. Ctrl-C is for the process at its other end.

    ``inherited``: the other ends of this pipe and of those of earlier processes, which a fork has copied. A pipe ends
    only when all copies are closed, and whatever ends the process that asks has to end this one, too.
    """
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    gc.set_threshold(100_000)
    gates = Gates(options, configurations_of(options))
    keeper = keeper_of(gates, options)
    try:
        pipe.send(READY)
        while True:
            answers = [_answer(file, gates, keeper) for file in pipe.recv()]
            pipe.send((answers, gates.take_met()))
    except (EOFError, OSError):  # the main process has closed the pipe
        return


def _answer(file: PlanFile, gates: Gates, keeper: Keeper | None) -> tuple[list[PlanResult], list[str]] | None:
    """The results of a file and memcheck's own failures; None where they cannot be sent."""
    from pickle import dumps

    try:
        verdict = judged(file, gates, keeper)
        answer = verdict.plans, verdict.traces
        dumps(answer)
    except Exception:  # noqa: BLE001 - the process at the other end judges the file itself, and says what is wrong
        return None
    return answer
