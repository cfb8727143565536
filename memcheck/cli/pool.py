"""Processes that judge plan files at once (``check --jobs``). One that dies takes one verdict with it, at most."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait

from memcheck.cli.judging import FileVerdict, Gates, configurations_of, judged, keeper_of, size_of
from memcheck.cli.options import CheckOptions
from memcheck.config.find import PlanFile
from memcheck.judge import stem
from memcheck.rules.result import PlanResult, Unreadable, defect_result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from typing import Any

    from memcheck.cli.kept import Keeper


Batch = list[tuple[int, PlanFile]]
"""Files with their places in the run."""

BATCH = 8
"""Files of the usual size that are handed over at once: few enough that no process waits long for the last one."""
STEP = 64
"""Files that are read at once: processes must not wait for the reading of all that come into question."""
MODEL_KEYS = (b"model:", b"model_name_or_path:")
"""Keys that name the model, ``base_model:`` among them."""
LINE_BYTES = 200
"""What is read of such a line."""


class Batches:
    """The plan files of a run that have been read, and wait for a process."""

    def __init__(self, files: Iterator[PlanFile | Unreadable | FileVerdict]) -> None:
        self._files = enumerate(files)
        self._read = 0
        self._waiting: dict[bytes, deque[tuple[int, PlanFile]]] = {}
        self._owners: dict[bytes, object] = {}

    def __bool__(self) -> bool:
        """Whether a file is waiting to be checked."""
        return bool(self._waiting)

    def read(self, end: int) -> Iterator[tuple[int, PlanFile | Unreadable | FileVerdict]]:
        """Read up to this place of the run, a step of it at most. What needs no process is handed back, with its
        place.
        """
        end = min(end, self._read + STEP)
        while self._read < end:
            found = next(self._files, None)
            if found is None:
                return
            place, file = found
            self._read = place + 1
            if isinstance(file, PlanFile):
                self._waiting.setdefault(_model(file.data), deque()).append((place, file))
            else:
                yield place, file

    def take(self, process: object) -> Batch:
        """What to hand to this process; nothing where no file waits.

        First come its own models, then one that no process has had, then whatever the others have not got to.
        """
        batch: Batch = []
        size = 0
        models = [model for model in self._waiting if self._owners.get(model) is process] or self._others()
        for model in models:
            files = self._waiting[model]
            while files and size < BATCH:
                batch.append(files.popleft())
                size += size_of(batch[-1][1])
            if not files:
                del self._waiting[model]
            if size >= BATCH:
                break
        self._owners.update((model, process) for model in models if self._owners.get(model) is None)
        return batch

    def _others(self) -> list[bytes]:
        """One model at most: the first that no process has had, or else the one of most files."""
        for model in self._waiting:
            if model not in self._owners:
                return [model]
        return [max(self._waiting, key=lambda model: len(self._waiting[model]))] if self._waiting else []


def _model(data: bytes) -> bytes:
    """The text that names a file's model, as far as its first such line shows. No verdict depends on it."""
    for key in MODEL_KEYS:
        start = data.find(key)
        if start >= 0:
            return data[start + len(key) : start + LINE_BYTES].partition(b"\n")[0].strip()
    return b""


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


AHEAD = 256
"""Verdicts that wait for an earlier one at most: a file that takes long must not have all others read meanwhile."""
PATIENCE_S = 5.0
"""How long to wait for the exit code of a process whose pipe is closed."""


class ProcessEndedError(RuntimeError):
    """A process that judged a file ended without an answer."""


class Worker:
    """One process and the pipe to it."""

    def __init__(self, method: str, options: CheckOptions, others: Iterable[Worker]) -> None:
        """Start the process in addition to ``others``; raises OSError if the system allows no further process."""
        if method == "spawn":  # the process starts as `python -c`, which would look for modules in the checkout first
            os.environ.setdefault("PYTHONSAFEPATH", "1")
        context: Any = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe()
        inherited = [self.pipe, *(each.pipe for each in others)] if method == "fork" else []
        self.process: BaseProcess = context.Process(target=work, args=(theirs, options, inherited), daemon=True)
        self.ready = False
        """Whether the process has started and waits for files."""
        with uninterrupted():
            self.process.start()
        theirs.close()  # the end of the process is then the end of the pipe

    def end(self) -> int | None:
        """Stop the process, even if it is busy, and return its exit code."""
        self.pipe.close()
        self.process.terminate()
        self.process.join(PATIENCE_S)
        return self.process.exitcode


class Pool:
    """Judges files in up to ``count`` processes, which are started as there is work for them."""

    def __init__(
        self, method: str, count: int, gates: Gates, options: CheckOptions, keeper: Keeper | None = None
    ) -> None:
        """``gates`` are those of this process; every other one makes its own of the options."""
        self._method, self._count, self._gates, self._options = method, count, gates, options
        self._keeper = keeper
        self._idle: list[Worker] = []
        self._busy: dict[Connection, tuple[Worker, Batch]] = {}
        self._again: deque[Batch] = deque()
        self._reached: dict[int, FileVerdict] = {}

    def verdicts(self, files: Iterator[PlanFile | Unreadable | FileVerdict]) -> Iterator[FileVerdict]:
        """The verdict on every file, in their order."""
        waiting = Batches(self._gated(files))
        place = 0
        try:
            while True:
                for index, file in waiting.read(place + AHEAD):
                    self._reached[index] = judged(file, self._gates)
                while self._hand_over(waiting):
                    pass
                done = not self._busy and not self._reached
                heard = wait(list(self._busy)) if self._busy else []
                for pipe in [each for each in self._busy if each in heard]:
                    self._hear(*self._busy.pop(pipe))
                while place in self._reached:
                    yield self._reached.pop(place)
                    place += 1
                if done:
                    return
        finally:
            for worker in self._workers():
                worker.end()

    def _workers(self) -> list[Worker]:
        return [*self._idle, *(worker for worker, _ in self._busy.values())]

    def _gated(
        self, files: Iterator[PlanFile | Unreadable | FileVerdict]
    ) -> Iterator[PlanFile | Unreadable | FileVerdict]:
        for file in files:
            if isinstance(file, PlanFile):
                self._gates.of(file.path)  # what is wrong with a configuration ends the run here
            yield file

    def _hand_over(self, waiting: Batches) -> bool:
        """Give a batch to a process that has none, or judge it where none can be had; False where nothing is done."""
        if not (self._again or waiting) or not (self._idle or len(self._busy) < max(1, self._count)):
            return False
        worker = self._idle.pop() if self._idle else self._start()
        batch = self._again.popleft() if self._again else waiting.take(worker)
        if worker is None:
            self._reached.update((place, judged(file, self._gates, self._keeper)) for place, file in batch)
            return True
        self._busy[worker.pipe] = worker, batch
        with suppress(OSError):  # it is gone, which the next look at its pipe finds out
            worker.pipe.send([file for _, file in batch])
        return True

    def _start(self) -> Worker | None:
        if len(self._busy) >= self._count:
            return None
        try:
            return Worker(self._method, self._options, self._workers())
        except OSError:
            self._count = len(self._busy)
            return None

    def _hear(self, worker: Worker, batch: Batch) -> None:
        """Take what a process says: that it is ready, its verdicts, or that it is gone."""
        try:
            said = worker.pipe.recv()
        except (EOFError, OSError):
            self._lose(worker, batch)
            return
        if said == READY:
            worker.ready = True
            self._busy[worker.pipe] = worker, batch
            return
        self._idle.append(worker)
        answers, met = said
        self._gates.add_met(met)
        for (place, file), answer in zip(batch, answers, strict=True):
            # None: what was found does not go through a pipe.
            self._reached[place] = judged(file, self._gates) if answer is None else FileVerdict(file, *answer)

    def _lose(self, worker: Worker, batch: Batch) -> None:
        """A process is gone: each of its files gets one of its own, and one that ends that, too, is a defect."""
        code = worker.end()
        if not worker.ready:  # processes cannot be started here: a program without a file, no memory left
            self._count = len(self._busy)
            self._again.append(batch)
        elif len(batch) > 1:
            self._again.extend([each] for each in batch)
        else:
            ((place, file),) = batch
            self._reached[place] = FileVerdict(file, *_lost(file, code))


def _lost(file: PlanFile, code: int | None) -> tuple[list[PlanResult], list[str]]:
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    error = ProcessEndedError(f"the process that checked {file.path} ended with {how}")
    return [defect_result(file.path, 0, stem(file.path), error)], [f"{type(error).__name__}: {error}"]
