"""``memcheck.estimate``, ``check`` and ``suggest`` as functions: the answers of the commands, typed."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ValidationError

import memcheck
from memcheck.__main__ import main
from memcheck.report.models import ReportData
from memcheck.what_if.suggest.models import SuggestionsData

Capture = pytest.CaptureFixture[str]
EXAMPLE = "llama-3.1-8b-fsdp-8xh100.yaml"
OVER = {"training.micro_batch_size": 16}


@pytest.fixture
def plan(root: Path) -> Path:
    """A plan that fits."""
    return root / "examples" / EXAMPLE


def printed(capsys: Capture, *line: str) -> Any:
    """What a command prints as JSON."""
    main([*line, "--format", "json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["estimate", "check"])
def test_the_answer_is_the_command_s(plan: Path, capsys: Capture, command: str) -> None:
    """Every field of the JSON report has a field of the model, with the same value."""
    answer = memcheck.estimate(plan) if command == "estimate" else memcheck.check(plan)
    rest = ["--no-cache"] if command == "check" else []
    assert whole(answer) == printed(capsys, command, str(plan), *rest)


def test_remedies_are_the_command_s(plan: Path, capsys: Capture) -> None:
    """Findings with remedies and edits come back field by field."""
    answer = memcheck.check(plan, changes=OVER)
    said = printed(capsys, "check", str(plan), "--no-cache", "--set", "training.micro_batch_size=16")
    assert whole(answer) == said
    assert answer.plans[0].diagnostics[0].remedies


@pytest.mark.slow
def test_suggestions_are_the_command_s(plan: Path, capsys: Capture) -> None:
    """The fastest layouts, with what was searched."""
    answer = memcheck.suggest(plan, goal="throughput", top=2, budget_seconds=None)
    said = printed(capsys, "suggest", str(plan), "--goal", "throughput", "--top", "2")
    got = whole(answer)
    assert got.pop("space")["considered"] == said.pop("space")["considered"]
    assert got == said


def test_a_mapping_is_a_plan(plan: Path) -> None:
    """The same plan from a file and from a mapping has the same figures."""
    values = yaml.safe_load(plan.read_text())
    (from_file,), (from_mapping,) = memcheck.estimate(plan).plans, memcheck.estimate(values).plans
    assert from_mapping.estimate is not None
    assert from_mapping.estimate == from_file.estimate
    assert from_mapping.path == "<plan>"


def test_a_framework_s_config_takes_its_hardware(root: Path) -> None:
    """A config states no GPU; the keywords do, and the command line's answer is the same."""
    config = root / "examples" / "configs" / "axolotl-llama-3.1-8b-lora.yml"
    (without,) = memcheck.estimate(config).plans
    assert without.estimate is None
    assert without.diagnostics
    (stated,) = memcheck.estimate(config, gpu="l40s", gpus_per_node=1).plans
    assert stated.estimate is not None
    assert stated.gpu == "l40s-48gb" or stated.gpu.startswith("l40s")


def test_wrong_plans_are_findings_and_wrong_calls_are_errors(tmp_path: Path, plan: Path) -> None:
    """A typed error names what is wrong with a call; a plan that is wrong has diagnostics."""
    (wrong,) = memcheck.check({"memcheck": 1, "modle": "llama-3.1-8b"}).plans
    assert wrong.status == "error"
    assert "MEM011" in {each.code for each in wrong.diagnostics}
    with pytest.raises(memcheck.UsageError, match="cannot read"):
        memcheck.check(tmp_path / "missing.yaml")
    with pytest.raises(memcheck.UsageError, match="unknown goal"):
        memcheck.suggest(plan, goal="cheap")
    with pytest.raises(memcheck.UsageError, match="YAML cannot say"):
        memcheck.estimate({"memcheck": 1, "model": object()})


@pytest.mark.parametrize("text", ["model: llama-3.1-8b\nhardware: {gpu: h100}\n", "model: llama-3.1-8b", "a: \0"])
def test_the_text_of_a_plan_is_no_path(text: str) -> None:
    """A string is a path: whoever passes the text of a plan is told what to pass."""
    with pytest.raises(memcheck.UsageError) as raised:
        memcheck.check(text)
    assert "yaml.safe_load(text)" in str(raised.value.help)
    assert "\n" not in str(raised.value)


def test_answers_cannot_be_changed(plan: Path) -> None:
    """An answer is a value."""
    with pytest.raises(ValidationError, match="frozen"):
        memcheck.estimate(plan).plans[0].status = "failed"


@pytest.mark.parametrize("model", [ReportData, SuggestionsData])
def test_a_later_field_is_ignored(model: type[BaseModel]) -> None:
    """A program that was written for this version reads the reports of the next."""
    assert model.model_config["extra"] == "ignore"


def test_a_check_on_the_command_line_loads_no_pydantic(plan: Path) -> None:
    """The models cost nothing where nobody asks for them."""
    code = (
        "import sys; from memcheck.__main__ import main\n"
        f"assert main(['check', '--no-cache', '--format', 'json', {str(plan)!r}]) == 0\n"
        "assert not {'pydantic', 'memcheck.api'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_of_the_api_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of docs/reference/api.md runs alone and prints what its comments say."""
    monkeypatch.chdir(root)
    page = (root / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block, {})  # noqa: S102 - our own page
        said = re.findall(r"^print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
        assert printed.getvalue().splitlines()[: len(said)] == said, block


def whole(model: BaseModel) -> Any:
    """The model as the JSON report has it: what was not there stays away."""
    return json.loads(model.model_dump_json(exclude_unset=True))
