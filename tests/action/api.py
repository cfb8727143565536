"""GitHub's issue comments over real HTTP, as much of them as the action uses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "a-token"
COLLECTION = re.compile(r"/repos/acme/training/issues/(\d+)/comments(?:\?per_page=(\d+)&page=(\d+))?")
ITEM = re.compile(r"/repos/acme/training/issues/comments/(\d+)")


class GitHub:
    """Comments of pull requests, and what was asked for."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.read_only = False
        self.address = ""

    def add(self, body: str, kind: str = "User", association: str = "NONE") -> dict[str, Any]:
        """One more comment."""
        made = {
            "id": 100 + len(self.comments),
            "body": body,
            "user": {"type": kind},
            "author_association": association,
        }
        self.comments.append(made)
        return made

    def answer(self, method: str, path: str, token: str, data: dict[str, str]) -> tuple[int, object]:
        """What GitHub would answer."""
        self.requests.append(method)
        if token != f"Bearer {TOKEN}":
            return 401, {"message": "Bad credentials"}
        if method != "GET" and self.read_only:
            return 403, {"message": "Resource not accessible by integration"}
        if len(data.get("body", "")) > 65_536:
            return 422, {"message": "Validation Failed"}
        if (found := COLLECTION.fullmatch(path)) and method == "GET":
            size, page = int(found[2]), int(found[3])
            return 200, self.comments[(page - 1) * size : page * size]
        if found and method == "POST":
            return 201, self.add(data["body"], "Bot")
        if (found := ITEM.fullmatch(path)) and method == "PATCH":
            for each in self.comments:
                if each["id"] == int(found[1]):
                    each["body"] = data["body"]
                    return 200, each
        return 404, {"message": "Not Found"}


@contextmanager
def serve(github: GitHub) -> Iterator[None]:
    """Answer on a local port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            data = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            status, answer = github.answer(self.command, self.path, self.headers.get("Authorization", ""), data)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = handle_any  # noqa: N815 - the names http.server looks for

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the test's output is for tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    github.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
