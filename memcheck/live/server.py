"""The server of ``memcheck ui``: the page's files and the engine, for one browser on this machine.

Every request but one for a file of the page carries the token that only the printed address holds, as the header
``X-Memcheck-Token``. It names this server as its host and no other origin.

- ``GET /ui/folder``: ``{"version", "folder", "plans": [{"path", "digest"}]}``
- ``GET /ui/file?path=NAME``: ``{"path", "text", "digest"}``
- ``POST /ui/ask`` of ``{"lane": "answers" or "searches", "request": {...}}``: each step of ``memcheck.live`` on a line
- ``POST /ui/save`` of ``{"path", "text", "digest"}``: ``{"digest"}``, or 409 with the text that is on the disk

Processes that answer the page's requests: one answers the plan, one searches, so that no search delays an answer.

The folder that ``memcheck ui`` shows: its plans, their bytes, and where they are written back.
"""

from __future__ import annotations

import hmac
import json
import multiprocessing
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from memcheck import __version__
from memcheck.config.find import Configurations, Gate, find_plans
from memcheck.edge.in_memory import FilesInMemory, looking_at
from memcheck.edge.opener import RefusedError, digest, is_inside, look_at, read_whole, refuse_way_out, repository
from memcheck.errors import MemcheckError, UsageError
from memcheck.live.protocol import Session, utf8
from memcheck.live.requests import LARGEST, Workspace, checked_name
from memcheck.plan.text import shown_path
from memcheck.record import Record
from memcheck.rules.result import Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from multiprocessing.connection import Connection


MOST_PLANS = 2000
"""Plans that are listed."""
Write = Callable[[str, bytes], None]
"""Puts bytes in the place of a file; raises OSError."""


class PlanOfFolder(Record):
    """One plan file that may be opened and saved."""

    path: str
    """Relative to the folder's top, with forward slashes."""
    digest: str
    """A hash of the bytes. Only a file that still has it is written."""


class ChangedOnDiskError(UsageError):
    """A file that another program wrote since it was read. ``text`` is what it holds now."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"`{path}` was changed on the disk since it was opened", "compare both, then save again")
        self.text = text


class Folder:
    """A folder with plans, or one plan of a folder.

    ``top`` is the repository's top, or the folder itself where it is in no repository. Names of files are relative to
    it. What a plan refers to is read from below ``top``; only plans that were listed are written.
    """

    def __init__(self, path: str) -> None:
        if not os.path.exists(path):
            raise UsageError(f"there is no file or folder {path}", "name a plan or a folder")
        self.named = os.path.abspath(path)
        start = self.named if os.path.isdir(self.named) else os.path.dirname(self.named)
        self.top = os.path.realpath(repository(os.path.realpath(start))[0])
        self._listed: set[str] = set()

    def plans(self) -> list[PlanOfFolder]:
        """Every plan that ``memcheck check`` would find below the named path, at most :data:`MOST_PLANS`."""
        found: list[PlanOfFolder] = []
        for each in find_plans([self.named]):
            if isinstance(each, Unreadable) or len(found) == MOST_PLANS:
                continue
            name = shown_path(os.path.relpath(os.path.realpath(each.path), self.top))
            if not name.startswith("../"):
                found.append(PlanOfFolder(name, digest(each.data)))
        self._listed.update(each.path for each in found)
        return found

    def read(self, name: str) -> bytes:
        """The bytes of a file below the top.

        Raises:
            UsageError: the name leads out of the folder, or the file cannot be read.
        """
        try:
            return read_whole(self._path(name), LARGEST)
        except OSError as error:
            raise UsageError(f"cannot read `{name}`: {error.strerror or error}") from None

    def save(self, name: str, data: bytes, known: str, write: Write) -> str:
        """Write a plan that was listed and still is what ``known`` is the digest of; returns the new digest.

        Raises:
            ChangedOnDiskError: the file holds something else by now.
            UsageError: the file was not listed, or cannot be written.
        """
        if name not in self._listed:
            raise UsageError(f"`{name}` is not among the plans of this folder", "only a plan that was listed is saved")
        before = self.read(name)
        if digest(before) != known:
            raise ChangedOnDiskError(name, before.decode("utf-8", "replace"))
        path = self._path(name)
        try:
            refuse_way_out(path)
            write(path, data)
        except OSError as error:
            raise UsageError(f"cannot write `{name}`: {error.strerror or error}") from None
        return digest(data)

    def gate(self) -> Gate:
        """How strictly to check: the configuration that governs the named path."""
        path = os.path.join(self.named, "plan.yaml") if os.path.isdir(self.named) else self.named
        return Gate(settings=Configurations().of(path))

    def _path(self, name: str) -> str:
        """The absolute path of a name.

        Raises:
            UsageError: the name is none, or it leads out of the folder.
        """
        path = os.path.join(self.top, *checked_name(name).split("/"))
        if not is_inside(os.path.realpath(path), self.top):
            raise UsageError(f"`{name}` leads out of the folder", "name a file of the folder")
        return path


class FolderWorkspace(Workspace):
    """A workspace whose files are those that the page sent, and the folder's for all other names."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self._folder = folder

    def data(self, name: str) -> bytes:
        """The bytes of a file: those that were sent, else those on the disk."""
        return super().data(name) if name in self else self._folder.read(name)

    def reading(self) -> AbstractContextManager[None]:
        """A block in which memcheck reads the files that were sent and, for other names, the folder's."""
        return looking_at(_Overlay(self._files, self._folder))


class _Overlay(FilesInMemory):
    """The files that were sent, and below them the folder on the disk."""

    def __init__(self, sent: Mapping[str, bytes], folder: Folder) -> None:
        super().__init__(_SentThenDisk(sent, folder))
        self._sent, self._top = sent, folder.top

    def is_folder(self, path: str) -> bool:
        """Whether a path is a folder below the top, or leads to a file that was sent."""
        name = self.name_of(path)
        if name == "..":
            return False
        known = any(each.startswith(f"{name}/") for each in self._sent)
        return known or os.path.isdir(os.path.join(self._top, name))


class _SentThenDisk(Mapping[str, bytes]):
    """Bytes by name: of the files that were sent, else of regular files below the folder's top."""

    def __init__(self, sent: Mapping[str, bytes], folder: Folder) -> None:
        self._sent, self._folder = sent, folder

    def __getitem__(self, name: str) -> bytes:
        if name in self._sent:
            return self._sent[name]
        before = look_at(None)  # the disk itself is asked
        try:
            return self._folder.read(name)
        except (UsageError, RefusedError):
            raise KeyError(name) from None
        finally:
            look_at(before)

    def __contains__(self, name: object) -> bool:
        if name in self._sent:
            return True
        return isinstance(name, str) and bool(name) and os.path.isfile(os.path.join(self._folder.top, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent)

    def __len__(self) -> int:
        return len(self._sent)


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


HOST = "127.0.0.1"
LARGEST_REQUEST = 24 * 2**20
"""Bytes of a request: a workspace at its limit, and JSON around it."""
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page")
"""The built page, which the release build puts here."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".md": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
"""Type of a file by its suffix; any other is bytes."""


class PageServer(ThreadingHTTPServer):
    """A server on a free port of 127.0.0.1 for one folder."""

    daemon_threads = True

    def __init__(self, path: str, write: Write, page: str = PAGE, port: int = 0) -> None:
        """Bind the port.

        Raises:
            UsageError: there is no page in this installation, the path does not exist, or the port is taken.
        """
        self.files = page_files(page)
        self.folder = Folder(path)
        self.write = write
        self.token = secrets.token_hex(16)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise UsageError(f"cannot listen on port {port}: {error.strerror}", "leave `--port` out") from None
        self.host = f"{HOST}:{self.server_address[1]}"
        self.lanes: dict[str, Lane] = {}
        self._path = path
        self._starting = threading.Lock()

    @property
    def address(self) -> str:
        """What the browser opens. The token is in the fragment, which no request and no log ever holds."""
        return f"http://{self.host}/#t={self.token}"

    def lane(self, name: str) -> Lane:
        """The process of one lane, started when it is first asked."""
        with self._starting:
            if name not in self.lanes:
                self.lanes[name] = Lane(self._path)
            return self.lanes[name]

    def server_close(self) -> None:
        """End the processes and free the port."""
        for lane in self.lanes.values():
            lane.close()
        super().server_close()


def page_files(folder: str) -> dict[str, str]:
    """The page's files by address; nothing else of the disk is ever served.

    Raises:
        UsageError: this installation has no page.
    """
    if not os.path.isfile(os.path.join(folder, "index.html")):
        raise UsageError(
            "this installation has no page",
            "install a release (`pip install memcheck`); in a checkout, `npm --prefix site run release` builds it",
        )
    found = {"/": os.path.join(folder, "index.html")}
    for inner, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inner, name)
            found["/" + os.path.relpath(path, folder).replace(os.sep, "/")] = path
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers one request; see the module."""

    server: PageServer
    server_version = "memcheck"
    sys_version = ""
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        """Answer with a file of the page, the list of plans, or one plan."""
        parts = urlsplit(self.path)
        if not self._is_for_us():
            return
        if parts.path in self.server.files:
            self._file(self.server.files[parts.path])
        elif parts.path == "/ui/folder" and self._has_token():
            plans = [{"path": each.path, "digest": each.digest} for each in self.server.folder.plans()]
            name = os.path.basename(self.server.folder.named)
            self._json({"version": __version__, "folder": name, "plans": plans})
        elif parts.path == "/ui/file" and self._has_token():
            self._tell(lambda: self._opened(parse_qs(parts.query).get("path", [""])[0]))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        """Answer a request of the engine, or save a plan."""
        if not self._is_for_us() or not self._has_token():
            return
        try:
            given = self._body()
        except UsageError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, error.message)
            return
        request = given.get("request")
        if self.path == "/ui/ask" and given.get("lane") in LANES and isinstance(request, dict):
            self._steps(self.server.lane(str(given["lane"])), request)
        elif self.path == "/ui/save":
            self._tell(lambda: self._saved(given))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def _is_for_us(self) -> bool:
        """Whether the request names this server and comes from its page; else it is refused.

        A page of another origin can make a browser send requests here, and a name that someone else owns can lead to
        127.0.0.1.
        """
        origin = self.headers.get("Origin")
        if self.headers.get("Host") == self.server.host and origin in (None, f"http://{self.server.host}"):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "this address is for the page of `memcheck ui` alone")
        return False

    def _has_token(self) -> bool:
        """Whether the request has the token of the printed address; else it is refused."""
        if hmac.compare_digest(self.headers.get("X-Memcheck-Token", "").encode(), self.server.token.encode()):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "open the address that `memcheck ui` printed")
        return False

    def _body(self) -> dict[str, object]:
        """The JSON of a request.

        Raises:
            UsageError: it is too large, or no JSON object.
        """
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or len(length) > 9 or int(length) > LARGEST_REQUEST:
            raise UsageError(f"a request has at most {LARGEST_REQUEST:,} bytes")
        if self.headers.get_content_type() != "application/json":
            raise UsageError("a request is JSON")
        try:
            found = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise UsageError("a request is JSON") from None
        if not isinstance(found, dict):
            raise UsageError("a request is a JSON object")
        return found

    def _opened(self, name: str) -> dict[str, object]:
        """The reply to ``/ui/file``."""
        data = self.server.folder.read(name)
        return {"path": name, "text": data.decode("utf-8", "replace"), "digest": digest(data)}

    def _saved(self, given: dict[str, object]) -> dict[str, object]:
        """The reply to ``/ui/save``."""
        name, text, known = (given.get(key) for key in ("path", "text", "digest"))
        if not (isinstance(name, str) and isinstance(text, str) and isinstance(known, str)):
            raise UsageError("a plan is saved with its `path`, `text` and `digest`")
        return {"digest": self.server.folder.save(name, utf8(name, text), known, self.server.write)}

    def _tell(self, reply: Callable[[], object]) -> None:
        """Send what a function returns, or why it does not."""
        try:
            self._json(reply())
        except ChangedOnDiskError as error:
            self._json({"message": error.message, "help": error.help, "text": error.text}, HTTPStatus.CONFLICT)
        except MemcheckError as error:
            self._json({"message": error.message, "help": error.help}, HTTPStatus.BAD_REQUEST)

    def _steps(self, lane: Lane, request: object) -> None:
        """Send every step on a line as soon as it is there; a browser that has gone ends the request."""
        self._head(HTTPStatus.OK, "application/x-ndjson")
        steps = lane.ask(request)
        try:
            for step in steps:
                self.wfile.write(json.dumps(step).encode() + b"\n")
        except OSError:
            pass
        finally:
            steps.close()  # type: ignore[attr-defined]

    def _file(self, path: str) -> None:
        """Send one file of the page."""
        with open(path, "rb") as file:
            data = file.read()
        self._head(HTTPStatus.OK, TYPES.get(os.path.splitext(path)[1], "application/octet-stream"), len(data))
        self.wfile.write(data)

    def _json(self, found: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        data = json.dumps(found).encode()
        self._head(status, "application/json", len(data))
        self.wfile.write(data)

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._json({"message": why, "help": ""}, status)

    def _head(self, status: HTTPStatus, kind: str, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a terminal shows the address and no more."""
