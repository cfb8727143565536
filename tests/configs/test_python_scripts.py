"""Public scripts and notebooks, by repository and commit: what memcheck answers to each, where checkouts are at hand.

``MEMCHECK_SCRIPTS`` names a folder with a checkout of each repository, called ``OWNER__NAME``, at the recorded commit.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from memcheck.configs.importing import import_config
from memcheck.configs.types import ReadSetting
from memcheck.judge import Gate, check_file

GPU = "a100-80gb"
RECORD: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("python_scripts.yaml").read_text())
FOLDER = Path(os.environ.get("MEMCHECK_SCRIPTS", "/nonexistent"))
_OPTION = re.compile(r"--(?:set|[a-z-]+) ")


def test_the_record_is_of_public_files() -> None:
    """Each file once, at a commit; a third was set aside; a person read forty; none that is answered lacks its model."""
    assert len(RECORD) >= 150
    assert len({(each["repository"], each["path"]) for each in RECORD}) == len(RECORD)
    assert all(re.fullmatch(r"[0-9a-f]{40}", each["commit"]) for each in RECORD)
    assert sum(each.get("held", False) for each in RECORD) >= len(RECORD) / 3
    assert sum(each.get("read", False) for each in RECORD) >= 40
    assert all("model.name" in each["fields"] for each in RECORD if each["answer"] == "plan")


def test_most_jobs_are_answered() -> None:
    """Of files that train: half are answered with the GPU alone, and 85 % after at most three stated answers.

    Of those that were set aside: half, and three of four. Three of these have a construct that was read in them.
    """
    jobs = [each["answer"] for each in RECORD if each["answer"] != "refused"]
    assert jobs.count("plan") >= 0.54 * len(jobs)
    assert jobs.count("plan") + jobs.count("asks") >= 0.85 * len(jobs)
    held = [each["answer"] for each in RECORD if each["answer"] != "refused" and each.get("held")]
    assert held.count("plan") >= 0.5 * len(held)
    assert held.count("plan") + held.count("asks") >= 0.75 * len(held)


def answer(name: str, data: bytes) -> str:
    """What memcheck answers, in the words of the record."""
    (result, *_), traces = check_file(name, data, Gate(hardware={"gpu": GPU}))
    assert traces == []
    if result.estimate is not None:
        return "plan"
    help = next(each.help for each in result.findings if each.severity == "error")
    asked = re.search(r"add, with your own values: (.*)", help)
    if asked is not None:
        return "asks" if len(_OPTION.findall(f"{asked[1]} ")) <= 3 else "asks more"
    return "launch" if "launch line" in help else "refused"


def test_public_files_have_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer, and the same values where there is a plan."""
    if not FOLDER.is_dir():
        pytest.skip("MEMCHECK_SCRIPTS names no folder of checkouts")
    for each in RECORD:
        path = FOLDER / each["repository"].replace("/", "__") / each["path"]
        if path.is_file():
            monkeypatch.chdir(path.parent)
            assert answer(path.name, path.read_bytes()) == each["answer"], path
            if each["answer"] == "plan":
                found = import_config(path.name, path.read_bytes(), {"hardware.gpu": ReadSetting(GPU, "test")})
                assert {key: found.settings[key].value for key in each["fields"]} == each["fields"], path
