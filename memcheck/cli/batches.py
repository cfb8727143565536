"""Which plan files a process of ``check --jobs`` is handed next: those of models that it has priced before."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from memcheck.cli.jobs import FileVerdict, size_of
from memcheck.config.discover import PlanFile
from memcheck.result import Unreadable

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
