"""Messages of a visit: checked against their schema, and as true as the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs.live_schema import live_schema
from memcheck.judge import Gate, check_file
from memcheck.live.protocol import Session
from memcheck.what_if import with_remedies
from tests.live.recorded import RECORD, requests, visit, written

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
PLAIN = next(path for path in EXAMPLES if path.stem == "llama-3.1-8b-fsdp-8xh100")
NOT_LOADED = ("pydantic", "pydantic_core", "rpds", "jsonschema", "tomlkit", "click", "memcheck.cli", "memcheck.verify")
LATER = ("memcheck.live.searches", "memcheck.live.asked", "memcheck.configs.formats", "memcheck.review", "memcheck.why")
"""What other requests load: the page's snapshot, which has a budget, holds what an answer needs."""


def told(session: Session, request: object, step: str) -> dict[str, Any]:
    """The one reply of a kind."""
    (found,) = (each for each in session.handle(request) if each["step"] == step)
    return found


def ask(session: Session, number: int, text: str, **fields: object) -> dict[str, Any]:
    """The first step of an answer about a text."""
    return told(session, {"id": number, "do": "answer", "path": "plan.yaml", "text": text, **fields}, "first")


@pytest.fixture(scope="module")
def schema(root: Path) -> jsonschema.Draft7Validator:
    """The schema of all messages."""
    text = (root / "schemas" / "live.schema.json").read_text(encoding="utf-8")
    assert text == live_schema(), "run python -m docs.generate"
    found = jsonschema.Draft7Validator(json.loads(text))
    found.check_schema(found.schema)
    return found


def part(schema: jsonschema.Draft7Validator, name: str) -> jsonschema.Draft7Validator:
    """The schema of one definition."""
    return jsonschema.Draft7Validator({**schema.schema, "anyOf": [{"$ref": f"#/definitions/{name}"}]})


@pytest.mark.slow
def test_the_recorded_visit_is_what_happens(schema: jsonschema.Draft7Validator) -> None:
    """The record is up to date, its requests but the wrong one and all its replies are those of the schema."""
    assert RECORD.read_text(encoding="utf-8") == written(), "run python -m tests.live.recorded"
    found: list[Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    assert found == json.loads(json.dumps(visit()))
    for each in found[:-1]:
        part(schema, "Request").validate(each["request"])
    assert not part(schema, "Request").is_valid(found[-1]["request"])
    for each in found:
        for reply in each["replies"]:
            part(schema, "Reply").validate(reply)


@pytest.mark.parametrize("path", EXAMPLES[::2], ids=lambda path: path.stem)
def test_the_first_step_says_what_check_says(path: Path) -> None:
    """The same status, findings and places as the command line, which searches for remedies besides."""
    text = path.read_text(encoding="utf-8")
    files = {each.name: each.read_text(encoding="utf-8") for each in EXAMPLES[:1]}
    files |= {
        each.relative_to(path.parent).as_posix(): each.read_text(encoding="utf-8")
        for folder in ("bases", "configs")
        for each in (path.parent / folder).iterdir()
        if each.is_file()
    }
    results, traces = check_file(str(path), path.read_bytes(), Gate(grounds=0))
    assert not traces
    session = Session()
    for plan in results:
        found = told(
            session,
            {"id": 1, "do": "answer", "path": path.name, "text": text, "files": files, "document": plan.document},
            "first",
        )
        assert found["status"] == plan.status
        assert (found["figures"] or {}).get("needed_bytes") == (plan.estimate and plan.estimate.needed_bytes)
        assert [(each["code"], each["message"]) for each in found["diagnostics"]] == [
            (each.code, each.message) for each in plan.findings
        ]
        for each, finding in zip(found["diagnostics"], plan.findings, strict=True):
            span = finding.location.span
            assert (each["start"]["line"], each["start"]["column"]) == (span.line, span.column)


def test_every_request_ends() -> None:
    """The last step says how many there were."""
    for request in requests():
        steps = list(Session().handle(request))
        assert [each["step"] for each in steps].index("done") == len(steps) - 1 == steps[-1]["steps"]


def test_only_changed_sections_are_sent_again() -> None:
    """Relative to the answer that is shown, not to the one before: that may never have been drawn."""
    text = PLAIN.read_text(encoding="utf-8")
    session = Session()
    everything = ask(session, 1, text)["sections"]
    assert ask(session, 2, text, since=1)["sections"] == {}
    other = ask(session, 3, text.replace("gpus_per_node: ", "nodes: 2\n  gpus_per_node: "), since=2)["sections"]
    assert 0 < len(other) < len(everything)
    assert ask(session, 4, text, since=1)["sections"] == {}
    assert ask(session, 5, text, since=99)["sections"] == everything


@pytest.mark.slow
def test_places_are_those_of_editors() -> None:
    """A character beyond the first plane counts twice; a line that YAML alone ends is none to an editor."""
    session = Session()
    rest = "hardware: {gpu: h100-80gb}\ntraining: {micro_batch_size: 1, sequence_length: 8}\n"
    smile = ask(session, 1, f'memcheck: 1\nmodel: "\U0001f600" # x\n{rest}')["diagnostics"][0]
    assert (smile["start"]["character"], smile["end"]["character"]) == (7, 11)
    assert (smile["start"]["column"], smile["end"]["column"]) == (8, 11)
    place = ask(session, 2, f"memcheck: 1\n# a\u2028# b\nmodel: nobody-knows\n{rest}")["diagnostics"][0]["start"]
    assert (place["line"], place["character"]) == (3, 7)


def test_a_plan_is_read_with_the_files_of_the_workspace_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file on the disk under the name that a plan extends is not there; the workspace's own is."""
    (tmp_path / "base.yaml").write_text(PLAIN.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    session = Session()
    assert "does not exist" in ask(session, 1, "memcheck: 1\nextends: base.yaml\n")["diagnostics"][0]["message"]
    files = {"base.yaml": PLAIN.read_text(encoding="utf-8")}
    found = ask(session, 2, "memcheck: 1\nextends: base.yaml\n", files=files)
    assert (found["figures"], found["files"]) != (None, ["plan.yaml"])
    assert found["files"] == ["plan.yaml", "base.yaml"]


@pytest.mark.parametrize(
    "name", ["../up.yaml", "/etc/passwd", "C:\\x", "a//b", ".git/config", "a/./b", "", "x" * 201, "a\nb"]
)
def test_names_are_no_paths(name: str) -> None:
    """What is absolute, leads out or cannot be a name is refused."""
    found = told(Session(), {"id": 1, "do": "answer", "path": "plan.yaml", "files": {name: "x"}}, "failed")
    assert found["kind"] == "refused"


def test_a_workspace_is_bounded() -> None:
    """More files or bytes than it holds are refused, and nothing of that request stays."""
    session = Session()
    many = {f"f{number}": "x" for number in range(201)}
    assert told(session, {"id": 1, "do": "answer", "path": "p.yaml", "files": many}, "failed")["kind"] == "refused"
    assert session.workspace.names == ()
    large = {"id": 2, "do": "answer", "path": "p.yaml", "text": "x" * 1_048_577}
    assert "1,048,577 bytes" in told(session, large, "failed")["message"]


def test_the_path_loads_nothing_that_a_browser_lacks() -> None:
    """Neither native wheels nor the command line are imported for an answer, nor what only other requests need."""
    code = (
        "import sys\nfrom memcheck.live.protocol import handle\n"
        f"text = open({str(PLAIN)!r}, encoding='utf-8').read()\n"
        "list(handle({'id': 1, 'do': 'answer', 'path': 'plan.yaml', 'text': text}))\n"
        f"sys.exit(' '.join(name for name in {(*NOT_LOADED, *LATER)!r} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_check_loads_nothing_of_this_room() -> None:
    """The gate's command is as small as before."""
    code = (
        "import sys\nfrom memcheck.__main__ import main\n"
        f"sys.argv[1:] = ['check', {str(PLAIN)!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit(' '.join(name for name in sys.modules if name.startswith('memcheck.live')) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_remedies_are_no_part_of_the_first_step() -> None:
    """The same plan has remedies at the command line."""
    text = (Path(__file__).parents[2] / "examples" / "llama-3.1-8b-four-a100-40gb.yaml").read_bytes()
    results, _ = check_file("plan.yaml", text, Gate(remedies=with_remedies))
    assert any(finding.remedies for finding in results[0].findings)
    assert "remedies" not in ask(Session(), 1, text.decode())["sections"]
