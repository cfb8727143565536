"""``import`` and ``export`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import write, write_broken, write_over

Capture = pytest.CaptureFixture[str]

CONFIG = '{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'
STATED = ["--model", "llama-3.2-1b", "--gpu", "h100-80gb", "--gpus-per-node", "8", "--sequence-length", "2048"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")


def test_import_writes_a_plan_that_check_accepts(tmp_path: Path, capsys: Capture) -> None:
    """The plan goes to the file, with the line each value is from; what was assumed is on stderr."""
    (tmp_path / "ds.json").write_text(CONFIG)
    assert main(["import", "ds.json", *STATED, "-o", "plan.yaml"]) == 0
    captured = capsys.readouterr()
    assert "wrote plan.yaml" in captured.out
    assert "assumed: hardware.nodes: 1" in captured.err
    assert "# ds.json:1 zero_optimization.stage" in (tmp_path / "plan.yaml").read_text()
    assert main(["check", "plan.yaml"]) == 0


def test_import_asks_with_flags(tmp_path: Path, capsys: Capture) -> None:
    """Without what the config cannot say there is no plan, and each line names the flag."""
    (tmp_path / "ds.json").write_text(CONFIG)
    assert main(["import", "ds.json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    for flag in ("--model", "--gpu ", "--gpus-per-node", "--sequence-length"):
        assert flag in captured.err


def test_import_is_strict_on_request(tmp_path: Path, capsys: Capture) -> None:
    """A key that is not carried over is a note, and with ``--strict`` a failure."""
    (tmp_path / "ds.json").write_text(CONFIG.replace('"stage": 2', '"stage": 2, "zenflow": {"topk_ratio": 0.1}'))
    assert main(["import", "ds.json", *STATED]) == 0
    assert "note: ds.json:1: `zero_optimization.zenflow.topk_ratio`" in capsys.readouterr().err
    assert main(["import", "ds.json", *STATED, "--strict"]) == 1


def test_import_overwrites_nothing(tmp_path: Path, capsys: Capture) -> None:
    """An existing file stays."""
    (tmp_path / "ds.json").write_text(CONFIG)
    (tmp_path / "plan.yaml").write_text("mine")
    assert main(["import", "ds.json", *STATED, "-o", "plan.yaml"]) == 2
    assert (tmp_path / "plan.yaml").read_text() == "mine"
    assert "plan.yaml exists" in capsys.readouterr().err


def test_import_of_nothing_readable(tmp_path: Path, capsys: Capture) -> None:
    """A missing file is a usage error, a foreign or broken one a finding; neither is a traceback."""
    assert main(["import", "gone.json"]) == 2
    (tmp_path / "a.yaml").write_text("base_model: gpt2\n")
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe\x00")
    assert [main(["import", name]) for name in ("a.yaml", "b.json", "c.toml")] == [1, 1, 1]
    assert "Axolotl" in capsys.readouterr().err


def test_export_writes_the_config(tmp_path: Path, capsys: Capture) -> None:
    """JSON has no comments: what it does not say goes to stderr. ``--set`` exports another plan."""
    write(tmp_path, framework="deepspeed")
    assert main(["export", "good.yaml", "--to", "deepspeed", "--set", "training.gradient_accumulation_steps=4"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["train_batch_size"] == 32
    assert "said elsewhere: training.sequence_length: 2048" in captured.err


def test_export_is_strict_on_request(tmp_path: Path, capsys: Capture) -> None:
    """What is lost is on stderr, and with ``--strict`` a failure; what is said elsewhere is none."""
    write(tmp_path, framework="deepspeed")
    assert main(["export", "good.yaml", "--to", "deepspeed", "--strict"]) == 0
    assert main(["export", "good.yaml", "--to", "torchtitan"]) == 0
    assert "not in the config: training.framework" in capsys.readouterr().err
    assert main(["export", "good.yaml", "--to", "torchtitan", "--strict", "-o", "job.toml"]) == 1
    assert "not in the config" not in (tmp_path / "job.toml").read_text()
    assert "What this format cannot say:" in (tmp_path / "job.toml").read_text()


def test_export_of_a_broken_plan(tmp_path: Path, capsys: Capture) -> None:
    """A plan with errors has no config: each error names its place."""
    write_broken(tmp_path)
    assert main(["export", "broken.yaml", "--to", "accelerate"]) == 1
    assert "broken.yaml:" in capsys.readouterr().err
    text = (tmp_path / "broken.yaml").read_text()
    (tmp_path / "two.yaml").write_text(f"{text}---\n{text}")
    assert main(["export", "two.yaml", "--to", "accelerate"]) == 2
    assert "--document" in capsys.readouterr().err
    assert main(["export", "gone.yaml", "--to", "accelerate"]) == 2


def test_export_refuses_serving_and_impossible_layouts(tmp_path: Path, capsys: Capture) -> None:
    """Nothing trains an inference plan, and no config runs degrees that do not multiply."""
    head = "memcheck: 1\nmodel: gpt2\nhardware: {gpu: h100-80gb, gpus_per_node: 8}\n"
    (tmp_path / "serve.yaml").write_text(f"{head}inference: {{batch_size: 1, context_length: 512}}\n")
    assert main(["export", "serve.yaml", "--to", "megatron"]) == 1
    assert "inference" in capsys.readouterr().err
    training = "training: {framework: megatron, micro_batch_size: 1, sequence_length: 512}\n"
    (tmp_path / "odd.yaml").write_text(f"{head}parallelism: {{tensor: 3}}\n{training}")
    assert main(["export", "odd.yaml", "--to", "megatron"]) == 1
    assert "MEM201" in capsys.readouterr().err


def test_export_of_a_remedied_plan(tmp_path: Path, capsys: Capture) -> None:
    """`--apply-remedy` exports the plan as `suggest` would mend it, and it fits; one that fits stays as it is."""
    write_over(tmp_path)
    text = (tmp_path / "over.yaml").read_text().replace("framework: pytorch", "framework: torchtitan")
    (tmp_path / "over.yaml").write_text(text)
    assert main(["export", "over.yaml", "--to", "torchtitan", "--apply-remedy", "1", "-o", "job.toml"]) == 0
    assert "with suggestion 1:" in capsys.readouterr().err
    assert main(["export", "over.yaml", "--to", "torchtitan", "--apply-remedy", "500"]) == 1
    assert "memcheck suggest over.yaml" in capsys.readouterr().err
    write(tmp_path, framework="torchtitan")
    assert main(["export", "good.yaml", "--to", "torchtitan", "--apply-remedy", "1"]) == 0
    assert "exported as it is" in capsys.readouterr().err
