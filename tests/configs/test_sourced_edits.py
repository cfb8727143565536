"""Changes of plans with a ``source`` are edits of the file that says the value, proven by reading it again."""

from __future__ import annotations

import difflib
import json
import os
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.configs.plan_text import grown, leaves
from memcheck.configs.sourced_edits import sourced_edits
from memcheck.job.changes import spelled
from memcheck.plan.read import with_changes
from memcheck.plan.value_edits import edited
from tests.configs.sourced_plans import PLANS, TITAN, load, resolved, write

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, on a screen of 100 columns without colours."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def remedies(capsys: Capture, *arguments: str) -> list[dict[str, Any]]:
    """What ``suggest`` finds."""
    main(["suggest", "plan.yaml", *arguments, "--format", "json"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["remedies"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("format", PLANS)
def test_applied_suggestions_pass(capsys: Capture, format: str) -> None:
    """Every suggestion with edits: both files are written and ``check`` passes.

    A second run, which is asked for after the first of them, has nothing to do for a plan that fits.
    """
    plan, config = write(format)
    original = plan.read_bytes(), config.read_bytes()
    found = remedies(capsys)
    touched = 0
    for number, remedy in enumerate(found, 1):
        write(format)
        if not remedy["edits"] and not remedy["elsewhere"]:
            continue
        assert main(["suggest", "plan.yaml", "--apply", str(number)]) == 0
        after = plan.read_bytes(), config.read_bytes()
        assert after != original
        touched += after[1] != original[1]
        assert bool(remedy["elsewhere"]) is (after[1] != original[1])
        assert bool(remedy["edits"]) is (after[0] != original[0])
        values = dict(leaves(load().values))  # type: ignore[arg-type]
        for key, value in leaves(grown({}, remedy["set"])):
            assert values[key] == value, key
        capsys.readouterr()
        assert main(["check", "plan.yaml"]) == 0, capsys.readouterr().out
        settled = " uncertain" not in capsys.readouterr().out
        if number == 1:
            assert main(["suggest", "plan.yaml", "--apply", "1"]) == 0
            assert not settled or (plan.read_bytes(), config.read_bytes()) == after
    assert touched


@pytest.mark.slow
@pytest.mark.parametrize(("format", "end"), [*((each, "\r\n") for each in PLANS), ("accelerate", "\n")])
def test_the_diff_shows_what_is_written_and_writes_nothing(capsys: Capture, format: str, end: str) -> None:
    """One patch with both files; what it adds and takes is the difference; line ends stay."""
    plan, config = write(format, end)
    before = {path.name: path.read_bytes() for path in (plan, config)}
    assert main(["suggest", "plan.yaml", "--diff"]) == 0
    shown = capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in (plan, config)} == before
    assert main(["suggest", "plan.yaml", "--apply", "1"]) == 0
    expected = ""
    for path in (plan, config):
        after = path.read_bytes()
        assert after.count(b"\r\n") in {0, after.count(b"\n")}
        old, new = (text.decode().split("\n") for text in (before[path.name], after))
        lines = difflib.unified_diff([f"{x}\n" for x in old[:-1]], [f"{x}\n" for x in new[:-1]], path.name, path.name)
        expected += "".join(lines)
    assert shown == expected
    assert f"--- {config.name}" in shown


CHANGES: dict[str, list[dict[str, object]]] = {
    "deepspeed": [
        {"parallelism.zero_stage": 3},
        {"training.micro_batch_size": 2, "training.gradient_accumulation_steps": 4},
        {"training.optimizer.offload": "cpu"},
        {"training.offload.parameters": "cpu", "parallelism.zero_stage": 3},
        {"training.precision.recipe": "fp16-mixed"},
        {"training.sequence_length": 2048},
        {"training.clip_grad_norm": True},
        {"hardware.gpu.name": "h200"},
        {"training.optimizer.name": "lion"},
        {"training.attention": "eager"},
    ],
    "torchtitan": [
        {"parallelism.tensor": 2},
        {"training.micro_batch_size": 1},
        {"training.activation_checkpointing.mode": "full"},
        {"training.precision.recipe": "bf16-pure"},
        {"training.sequence_length": 4096},
        {"training.optimizer.implementation": "foreach"},
        {"parallelism.reshard_after_forward": False},
        {"training.compile": True},
        {"hardware.nodes": 2},
        {"training.expandable_segments": True},
    ],
    "megatron": [
        {"parallelism.tensor": 4},
        {"parallelism.pipeline": 2},
        {"training.micro_batch_size": 1},
        {"training.activation_checkpointing.mode": "full"},
        {"training.activation_checkpointing.mode": "selective"},
        {"parallelism.zero_stage": 0},
        {"training.sequence_length": 2048},
        {"training.optimizer.offload": "cpu"},
        {"parallelism.sequence": True},
        {"hardware.gpu.name": "h200"},
    ],
    "accelerate": [
        {"parallelism.tensor": 2},
        {"parallelism.context": 2},
        {"parallelism.reshard_after_forward": True},
        {"training.activation_checkpointing.mode": "full"},
        {"training.offload.parameters": "cpu"},
        {"training.precision.recipe": "fp16-mixed"},
        {"training.micro_batch_size": 1},
        {"training.compile": True},
        {"training.method": "lora"},
        {"hardware.gpu.name": "h200"},
    ],
}
"""Changes of a plan that its format can say, and some that only the plan can."""
IN_THE_PLAN = {
    "training.sequence_length": {"deepspeed", "accelerate"},
    "training.attention": {"deepspeed"},
    "hardware.gpu.name": set(PLANS),
    "hardware.nodes": {"torchtitan"},
    "training.expandable_segments": {"torchtitan"},
    "training.micro_batch_size": {"accelerate"},
    "training.method": {"accelerate"},
}


def joined(*changes: dict[str, object]) -> dict[str, object]:
    """Several changes at once."""
    return {key: value for each in changes for key, value in each.items()}


@pytest.mark.slow
@pytest.mark.parametrize("format", PLANS)
def test_edits_give_what_was_asked_for(format: str) -> None:
    """Each change alone and every two: the files parse, comments stay, the plan read again is the
    one that was asked for, and asking again finds nothing to edit. What the format can say is in the config."""
    plan, config = write(format)
    document = load()
    text, own = config.read_bytes(), plan.read_bytes()
    wishes = [
        *CHANGES[format],
        *(joined(*two) for two in combinations(CHANGES[format], 2) if not set(two[0]) & set(two[1])),
    ]
    made, possible = 0, 0
    for fields in wishes:
        changes = spelled(document, fields, None)
        wanted = resolved(with_changes(document, changes))
        assert wanted is not None, fields
        edits, elsewhere = sourced_edits(document, changes, wanted)
        possible += 1
        if not edits and not elsewhere:
            continue
        made += 1
        texts = {file.path: edited(text, file.edits) for file in elsewhere}
        data = edited(own, edits)
        for before, after in ((own, data), *((text, each) for each in texts.values())):
            assert comments(after) == comments(before)
        again = load(texts, data)
        values = dict(leaves(again.values))  # type: ignore[arg-type]
        assert {key: values.get(key) for key in fields} == fields
        assert [each.severity for each in again.findings].count("error") == 0
        found = resolved(again)
        assert found is not None
        assert found.job._replace(options=(), optimizer=wanted.job.optimizer) == wanted.job._replace(options=())
        if all(format not in IN_THE_PLAN.get(key, set()) for key in fields):
            assert not edits, fields
        assert sourced_edits(again, spelled(again, fields, None), found) == ((), ())
    assert made >= 0.9 * possible, (made, possible)


def comments(data: bytes) -> list[str]:
    """Every comment of a file."""
    return [line[line.index("#") :] for line in data.decode().splitlines() if "#" in line]


@pytest.mark.slow
def test_check_reports_edits_of_both_files(capsys: Capture) -> None:
    """JSON names each file's edits, SARIF has a change per artifact, and rdjson suggests what is on its line alone."""
    write("accelerate")
    main(["check", "plan.yaml", "--format", "json=r.json", "--format", "sarif=r.sarif", "--format", "rdjson=r.rdjson"])
    (plan,) = json.loads(Path("r.json").read_text())["plans"]
    found = [remedy for finding in plan["diagnostics"] for remedy in finding["remedies"]]
    both = [remedy for remedy in found if remedy["edits"] and remedy["elsewhere"]]
    assert both
    assert {file["path"] for remedy in both for file in remedy["elsewhere"]} == {"fsdp.yaml"}
    results = json.loads(Path("r.sarif").read_text())["runs"][0]["results"]
    changes = [fix["artifactChanges"] for result in results for fix in result.get("fixes", ())]
    names = [[change["artifactLocation"]["uri"] for change in each] for each in changes]
    assert ["plan.yaml", "fsdp.yaml"] in names
    for diagnostic in json.loads(Path("r.rdjson").read_text())["diagnostics"]:
        where = diagnostic["location"]
        for suggestion in diagnostic.get("suggestions", ()):
            assert suggestion["range"]["start"]["line"] == where["range"]["start"]["line"]


@pytest.mark.slow
def test_a_config_that_is_no_real_one_gets_no_edits(capsys: Capture) -> None:
    """Each way to write a change reads the configs again: of one with thousands of keys the remedies are named alone."""
    write("torchtitan")
    assert any(remedy["elsewhere"] for remedy in remedies(capsys))
    file = next(each for each in Path().glob("*.toml"))
    file.write_text(file.read_text() + "".join(f"key_{number} = 1\n" for number in range(6000)))
    found = remedies(capsys)
    assert found
    assert not any(remedy["elsewhere"] or remedy["edits"] for remedy in found)


def test_rdjson_suggests_in_the_config(capsys: Capture) -> None:
    """A finding about a value of the config is there, and a remedy that is one edit of that line is its suggestion."""
    _, config = write("torchtitan")
    config.write_text(TITAN.replace("local_batch_size = 4 ", "local_batch_size = 8 ").replace('"none"', '"full"'))
    assert main(["check", "plan.yaml", "--format", "rdjson"]) == 1
    found = next(d for d in json.loads(capsys.readouterr().out)["diagnostics"] if d["severity"] == "ERROR")
    assert found["location"]["path"] == "job.toml"
    (suggestion,) = found["suggestions"]
    assert suggestion["range"]["start"] == {"line": 7, "column": 20}
    assert suggestion["text"] == "1"


@pytest.mark.slow
@pytest.mark.parametrize("format", PLANS)
def test_check_fixes_both_files(capsys: Capture, format: str) -> None:
    """``--fix --unsafe-fixes`` makes the first remedy in all its files, ``--diff`` shows it, and again is nothing."""
    plan, config = write(format)
    before = plan.read_bytes(), config.read_bytes()
    assert main(["check", "plan.yaml", "--diff", "--unsafe-fixes"]) == 1
    shown = capsys.readouterr().out
    assert (plan.read_bytes(), config.read_bytes()) == before
    assert f"+++ {config.name}" in shown
    assert main(["check", "plan.yaml", "--fix", "--unsafe-fixes"]) == 0
    after = plan.read_bytes(), config.read_bytes()
    assert after[1] != before[1]
    capsys.readouterr()
    assert main(["check", "plan.yaml", "--fix", "--unsafe-fixes"]) == 0
    assert (plan.read_bytes(), config.read_bytes()) == after


@pytest.mark.slow
def test_two_plans_of_one_config_are_mended_one_after_the_other(capsys: Capture) -> None:
    """The second sees what the first one's remedy wrote."""
    plan, _ = write("torchtitan")
    Path("twin.yaml").write_bytes(plan.read_bytes())
    assert main(["check", "plan.yaml", "twin.yaml", "--diff", "--unsafe-fixes"]) == 1
    assert capsys.readouterr().out.count("+++ job.toml") == 1
    assert main(["check", "plan.yaml", "twin.yaml", "--fix", "--unsafe-fixes"]) == 0


@pytest.mark.slow
def test_all_files_are_written_or_none(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the second file cannot take its new text, the first one has its old text back, and nothing is left over."""
    plan, config = write("accelerate")
    before = plan.read_bytes(), config.read_bytes()
    swap = os.replace

    def failing(source: str, target: str) -> None:
        if target.endswith(config.name):
            raise PermissionError(13, "Permission denied", target)
        swap(source, target)

    monkeypatch.setattr(os, "replace", failing)
    assert main(["suggest", "plan.yaml", "--apply", "1"]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert (plan.read_bytes(), config.read_bytes()) == before
    assert sorted(os.listdir()) == [".git", "fsdp.yaml", "plan.yaml"]
