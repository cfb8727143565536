"""Public files that wrap a launch, by repository and commit: the launch and its machine, where checkouts are at hand.

``MEMCHECK_SCRIPTS`` names a folder with a checkout of each repository, called ``OWNER__NAME``, at the recorded commit.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.configs.next_command import Machine
from memcheck.configs.refusals import asked_for, wrapper_of
from memcheck.configs.syntax import load_config, syntax_of
from memcheck.judge import Gate, check_file

RECORD: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("wrapper_files.yaml").read_text())
FOLDER = Path(os.environ.get("MEMCHECK_SCRIPTS", "/nonexistent"))
LEAST = 0.85


def test_the_record_is_of_public_files() -> None:
    """Each file once, at a commit, of many kinds; enough of those that train are found."""
    assert len(RECORD) >= 60
    assert len({(each["repository"], each["path"]) for each in RECORD}) == len(RECORD)
    assert all(re.fullmatch(r"[0-9a-f]{40}", each["commit"]) for each in RECORD)
    assert len({each["kind"] for each in RECORD}) >= 10
    training = [each for each in RECORD if each.get("trains", True)]
    assert sum(each.get("found", True) for each in training) >= LEAST * len(training)


def launched(name: str, text: str) -> tuple[int, Machine]:
    """The line that memcheck shows for a file, and the machine that it asks for."""
    (result, *_), traces = check_file(name, text.encode(), Gate())
    assert traces == []
    wrapper = wrapper_of(name, text)
    if wrapper is not None:
        return wrapper.location.span.line if wrapper.words else 0, wrapper.machine
    machine = asked_for(load_config(name, text, syntax_of(name, text)))
    return next((each.location.span.line for each in result.findings), 0), machine


def test_the_launches_of_public_files_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their line, the GPU, the GPUs per node and the nodes; a file that is recorded as missed is missed."""
    if not FOLDER.is_dir():
        pytest.skip("MEMCHECK_SCRIPTS names no folder of checkouts")
    for each in RECORD:
        path = FOLDER / each["repository"].replace("/", "__") / each["path"]
        if path.is_file():
            monkeypatch.chdir(path.parent)
            line, machine = launched(path.name, path.read_text(encoding="utf-8"))
            same = tuple(machine) == (each["gpu"], each["gpus"], each["nodes"]) and each.get("line", line) == line
            assert same is each.get("found", True) or not each.get("trains", True), path
