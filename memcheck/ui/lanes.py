"""Processes that answer the page's requests: one answers the plan, one searches, so that no search delays an answer."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator

from memcheck.live.protocol import Session
from memcheck.ui.folder import Folder, FolderWorkspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LANES = ("answers", "searches")
"""A lane is a process with a session of its own."""
LOOK_S = 0.01
"""Seconds between two looks whether a newer request has come."""
GIVE_WAY_S = 2.0
"""Seconds that a request has to end after a newer one has come, before its process is replaced."""


class Lane:
    """One process. A newer request ends the one that is running."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._newest = 0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=answer_forever, args=(self._path, other), daemon=True)
        self._process.start()
        other.close()

    def ask(self, request: object) -> Iterator[object]:
        """The steps of an answer. They end early where a newer request comes; that is no error."""
        self._newest += 1
        own = self._newest
        with self._turn:
            try:
                self._pipe.send(request)
                while own == self._newest:
                    if not self._pipe.poll(LOOK_S):
                        continue
                    step = self._pipe.recv()
                    if step is None:
                        return
                    yield step
            except (EOFError, OSError):
                self._restart()
                yield from died(request)
                return
            finally:
                self._drain()

    def _drain(self) -> None:
        """End a request that is still running; a process that does not give way is replaced."""
        try:
            self._pipe.send(None)
            while self._pipe.poll(GIVE_WAY_S):
                if self._pipe.recv() == "idle":
                    return
        except (EOFError, OSError):
            pass
        self._restart()

    def _restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def died(request: object) -> Iterator[object]:
    """The steps of a request whose process died."""
    number = request.get("id") if isinstance(request, dict) else None
    message = "the process that answers ended"
    yield {"id": number, "step": "failed", "kind": "defect", "message": message, "help": "try again", "report": ""}
    yield {"id": number, "step": "done", "steps": 1}


def answer_forever(path: str, pipe: Connection) -> None:
    """Answer the requests of a pipe until it is closed: every step, None after the last, "idle" for each None."""
    folder = Folder(path)
    session = Session(folder.gate())
    session.workspace = FolderWorkspace(folder)
    while True:
        try:
            request = pipe.recv()
            if request is None:
                pipe.send("idle")
                continue
            for step in session.handle(request):
                pipe.send(step)
                if pipe.poll():
                    break
            else:
                pipe.send(None)
        except (EOFError, OSError, KeyboardInterrupt):
            return
