"""Framework configs that plans take as their source, through git's earlier commits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.review.history.repositories import commit, edit

ENGINE = (
    '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, '
    '"zero_optimization": {"stage": 3}}'
)
LAUNCH = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: ../ds/engine.json}\n"
PLAN = (
    "memcheck: 1\nsource: {accelerate: ./conf/launch.yaml}\nmodel: llama-3.2-1b\nhardware: {gpu: h100-80gb}\n"
    "training: {sequence_length: 4096}\n"
)


def test_a_change_in_a_source_is_a_change_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that a plan's source names makes the plan changed, and its earlier text is what it is compared with."""
    for name, text in {"plan.yaml": PLAN, "conf/launch.yaml": LAUNCH, "ds/engine.json": ENGINE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    commit(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["diff", "--from-ref", "HEAD", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []
    edit(tmp_path / "ds" / "engine.json", '_gpu": 1', '_gpu": 4')
    assert main(["diff", "--from-ref", "HEAD", "--format", "json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert change["delta_bytes"] > 2**30
    assert main(["check", "--from-ref", "HEAD", "--format", "json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["path"] == "plan.yaml"
