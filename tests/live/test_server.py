"""``memcheck ui`` serves this machine alone: what it answers, what it refuses, and what it writes."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memcheck.cli.replace import put_in_place
from memcheck.errors import UsageError
from memcheck.live.server import LARGEST_REQUEST, Folder, PageServer, page_files

pytestmark = pytest.mark.slow

BASE = "memcheck: 1\nmodel: llama-3.2-1b\nhardware: {gpu: h100-80gb}\n"
PLAN = (
    "memcheck: 1\nextends: base.yaml\ntraining: {framework: huggingface, micro_batch_size: 1, sequence_length: 2048}\n"
)
Reply = tuple[int, Any]


class Browser:
    """Requests as the page sends them; every header can be another."""

    def __init__(self, server: PageServer) -> None:
        self.server = server

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """The status and the JSON or bytes of a reply."""
        connection = http.client.HTTPConnection(*self.server.server_address[:2], timeout=30)
        sent = {
            "Host": self.server.host,
            "X-Memcheck-Token": self.server.token,
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, sent)
            reply = connection.getresponse()
            found = reply.read()
        finally:
            connection.close()
        kind = reply.headers.get_content_type()
        if kind == "application/x-ndjson":
            return reply.status, [json.loads(line) for line in found.splitlines()]
        return reply.status, json.loads(found) if kind == "application/json" else found


def words(steps: list[Any]) -> list[str]:
    """The steps of an answer in order, without those that only say that a search goes on."""
    return [step["step"] for step in steps if step["step"] != "searching"]


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    folder = tmp_path / "repository" / "plans"
    folder.mkdir(parents=True)
    (folder.parent / ".git").mkdir()
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    (folder / "plan.yaml").write_text(PLAN, encoding="utf-8")
    (tmp_path / "secret.yaml").write_text("memcheck: 1\n", encoding="utf-8")
    return folder


@pytest.fixture
def browser(plans: Path, tmp_path: Path) -> Iterator[Browser]:
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html><title>page</title>", encoding="utf-8")
    (page / "assets" / "app.js").write_text("1", encoding="utf-8")
    server = PageServer(str(plans), put_in_place, page=str(page))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Browser(server)
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_plan_is_answered_with_what_it_extends(browser: Browser) -> None:
    """The plans of the folder are listed; text that was not saved is checked with the files beside it on the disk."""
    status, found = browser.ask("GET", "/ui/folder")
    assert (status, [each["path"] for each in found["plans"]]) == (200, ["plans/base.yaml", "plans/plan.yaml"])
    opened = browser.ask("GET", "/ui/file?path=plans/plan.yaml")[1]
    assert opened["text"] == PLAN
    request = {"id": 1, "do": "answer", "path": "plans/plan.yaml", "text": PLAN.replace("2048", "4096")}
    status, steps = browser.ask("POST", "/ui/ask", {"lane": "answers", "request": request})
    assert (status, words(steps)) == (200, ["first", "form", "choices", "done"])
    assert steps[0]["verdict"]["word"] == "Fits"
    assert (browser.server.folder.read("plans/plan.yaml")) == PLAN.encode()


def test_both_lanes_answer_alike(browser: Browser) -> None:
    """A search runs in a process of its own, which reads the same folder."""
    request = {"id": 2, "do": "answer", "path": "plans/plan.yaml", "text": PLAN}
    found = [browser.ask("POST", "/ui/ask", {"lane": lane, "request": request})[1] for lane in ("answers", "searches")]
    assert words(found[0]) == words(found[1])
    assert [step for step in found[0] if step["step"] == "first"] == [
        step for step in found[1] if step["step"] == "first"
    ]


def test_a_dead_process_is_replaced(browser: Browser) -> None:
    """A request whose process ends is told so, and the next one is answered."""
    request = {"id": 3, "do": "answer", "path": "plans/plan.yaml", "text": PLAN}
    lane = browser.server.lane("answers")
    lane._process.kill()
    lane._process.join()
    steps = browser.ask("POST", "/ui/ask", {"lane": "answers", "request": request})[1]
    assert [step["step"] for step in steps] == ["failed", "done"]
    steps = browser.ask("POST", "/ui/ask", {"lane": "answers", "request": request})[1]
    assert words(steps) == ["first", "form", "choices", "done"]


def test_a_plan_is_saved_where_it_was_read(browser: Browser, plans: Path) -> None:
    """A save needs the digest of what is on the disk; what another program wrote is not lost."""
    browser.ask("GET", "/ui/folder")
    opened = browser.ask("GET", "/ui/file?path=plans/plan.yaml")[1]
    changed = PLAN.replace("2048", "1024")
    saved = browser.ask("POST", "/ui/save", {"path": "plans/plan.yaml", "text": changed, "digest": opened["digest"]})
    assert saved[0] == 200
    assert (plans / "plan.yaml").read_text(encoding="utf-8") == changed
    (plans / "plan.yaml").write_text("memcheck: 1\n", encoding="utf-8")
    status, refused = browser.ask("POST", "/ui/save", {"path": "plans/plan.yaml", "text": PLAN, **saved[1]})
    assert (status, refused["text"]) == (409, "memcheck: 1\n")
    assert (plans / "plan.yaml").read_text(encoding="utf-8") == "memcheck: 1\n"


@pytest.mark.parametrize(
    "path", ["../secret.yaml", "/etc/passwd", "plans/../../secret.yaml", ".git/config", "", "plans/none.yaml", "a\nb"]
)
def test_no_other_file_is_read_or_written(browser: Browser, path: str) -> None:
    """Names that lead out of the folder, into ``.git`` or nowhere are refused, for reading and for saving."""
    from urllib.parse import quote

    assert browser.ask("GET", f"/ui/file?path={quote(path)}")[0] == 400
    assert browser.ask("POST", "/ui/save", {"path": path, "text": "x", "digest": ""})[0] == 400


def test_a_link_is_no_way_out(browser: Browser, plans: Path) -> None:
    """A link in the folder to a file outside is neither listed, nor read, nor written."""
    (plans / "out.yaml").symlink_to(plans.parent.parent / "secret.yaml")
    listed = [each["path"] for each in browser.ask("GET", "/ui/folder")[1]["plans"]]
    assert listed == ["plans/base.yaml", "plans/plan.yaml"]
    assert browser.ask("GET", "/ui/file?path=plans/out.yaml")[0] == 400
    assert browser.ask("POST", "/ui/save", {"path": "plans/out.yaml", "text": "x", "digest": ""})[0] == 400
    linked = "memcheck: 1\nextends: out.yaml\n"
    request = {"id": 1, "do": "answer", "path": "plans/plan.yaml", "text": linked}
    first, *_ = browser.ask("POST", "/ui/ask", {"lane": "answers", "request": request})[1]
    assert first["verdict"]["word"] == "Not estimated"


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Memcheck_Token": ""},
        {"X_Memcheck_Token": "0" * 32},
        {"Host": "memcheck.example:80"},
        {"Host": "localhost"},
        {"Origin": "http://memcheck.example"},
        {"Origin": "null"},
    ],
    ids=str,
)
def test_others_are_refused(browser: Browser, headers: dict[str, str]) -> None:
    """Without the token, under another name, or from a page of another origin nothing is answered and nothing saved."""
    for method, path, body in (
        ("GET", "/ui/folder", None),
        ("GET", "/ui/file?path=plans/plan.yaml", None),
        ("POST", "/ui/ask", {"lane": "answers", "request": {}}),
        ("POST", "/ui/save", {"path": "plans/plan.yaml", "text": "", "digest": ""}),
    ):
        assert browser.ask(method, path, body, **headers)[0] == 403


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"[" * 100_000, b'{"lane": "answers"}', b'{"lane": 3, "request": {}}', b"\xff"],
    ids=["cut", "list", "deep", "no request", "no lane", "no text"],
)
def test_a_hostile_request_is_refused(browser: Browser, body: bytes) -> None:
    """What is no request is answered with a reason, and the next request is answered."""
    status, found = browser.ask("POST", "/ui/ask", body)
    assert (status, set(found)) in ((400, {"message", "help"}), (404, {"message", "help"}))
    assert browser.ask("GET", "/ui/folder")[0] == 200


def test_a_large_request_is_refused_before_it_is_read(browser: Browser) -> None:
    """The stated length decides, and a wrong one is refused as well."""
    for length in (str(LARGEST_REQUEST + 1), "-1", "x", "9" * 40):
        assert browser.ask("POST", "/ui/ask", b"", Content_Length=length)[0] == 400


def test_only_the_page_is_served(browser: Browser) -> None:
    """Files of the page come with their type and are framed by nobody; any other address is none."""
    assert browser.ask("GET", "/")[1].startswith(b"<!doctype html>")
    assert browser.ask("GET", "/assets/app.js")[0] == 200
    for path in ("/assets/../../secret.yaml", "/..%2fsecret.yaml", "/assets", "/page/index.html", "/ui/none"):
        assert browser.ask("GET", path)[0] == 404


def test_an_installation_without_a_page_says_so(tmp_path: Path, plans: Path) -> None:
    """The message names the release and the build; a missing folder is told, too."""
    with pytest.raises(UsageError, match="no page"):
        page_files(str(tmp_path))
    with pytest.raises(UsageError, match="no file or folder"):
        Folder(str(plans / "none"))


def test_the_command_prints_its_address(root: Path, plans: Path) -> None:
    """It answers on 127.0.0.1 and ends with Ctrl-C; without a page it is a usage error."""
    command = [sys.executable, "-m", "memcheck", "ui", str(plans), "--no-browser"]
    if not (root / "memcheck" / "live" / "page" / "index.html").is_file():
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert "this installation has no page" in done.stderr
        return
    import signal

    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#t=[0-9a-f]{32}\n", process.stdout.readline())
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
