"""Inference plans with a ``source``: what they take from a config, and their remedies as edits of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.configs.plan_text import grown, leaves
from tests.configs.sourced_plans import load

Capture = pytest.CaptureFixture[str]
MEGATRON = """\
#!/bin/bash
TP=1
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096   # the model
    --num-attention-heads 32 --max-position-embeddings 131072
)
torchrun --nproc-per-node 4 tools/run_dynamic_text_generation_server.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size ${TP} --micro-batch-size 4 --seq-length 4096 \\
    --inference-max-requests 24 --inference-max-seq-length 8192 --bf16
"""
ACCELERATE = """\
# how we launch
distributed_type: FSDP
num_machines: 1
num_processes: 4
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
parallelism_config:
  parallelism_config_tp_size: 1   # whole
"""
DEEPSPEED = '{"tensor_parallel": {"autotp_size": 1}, "train_micro_batch_size_per_gpu": 8}\n'
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n\n[parallelism]\ntensor_parallel_degree = 1   # whole\n'
SERVED = "inference:\n  batch_size: 24   # at a time\n  context_length: 8192\n"
LLAMA = "model: llama-3.1-8b\n"
NODE = "hardware:\n  gpu: rtx-4090   # ours\n  gpus_per_node: 4\n"
PLANS = {
    "megatron": ("serve.sh", MEGATRON, LLAMA + "hardware: {gpu: rtx-4090}\ninference:\n  weights: bf16   # as saved\n"),
    "accelerate": ("launch.yaml", ACCELERATE, LLAMA + "hardware: {gpu: rtx-4090}   # ours\n" + SERVED),
    "deepspeed": ("ds.json", DEEPSPEED, LLAMA + NODE + SERVED),
    "torchtitan": ("job.toml", TITAN, NODE + SERVED),
}
"""By format: a config, and a plan that takes its values from it and serves more than fits."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def write(format: str) -> tuple[Path, Path]:
    """The plan and its config as files."""
    name, text, rest = PLANS[format]
    plan, config = Path("plan.yaml"), Path(name)
    config.write_text(text)
    plan.write_text(f"memcheck: 1\nsource: {{{format}: ./{name}}}\n{rest}")
    return plan, config


def remedies(capsys: Capture) -> list[dict[str, Any]]:
    """What ``suggest`` finds."""
    main(["suggest", "plan.yaml", "--format", "json"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["remedies"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("format", PLANS)
def test_every_suggestion_is_written_where_the_value_is(capsys: Capture, format: str) -> None:
    """Each is edits of the config, of the plan or of both; comments stay, the plan has the values and passes."""
    plan, config = write(format)
    before = {path: path.read_text() for path in (plan, config)}
    found = remedies(capsys)
    kinds = {key for remedy in found for key in remedy["set"]}
    assert {"parallelism.tensor", "inference.context_length", "hardware.gpu"} <= kinds
    for number, remedy in enumerate(found, 1):
        write(format)
        assert remedy["edits"] or remedy["elsewhere"], remedy["set"]
        assert main(["suggest", "plan.yaml", "--apply", str(number)]) == 0
        for path in (plan, config):
            comments = [line.partition("#")[2] for line in before[path].splitlines()]
            assert [line.partition("#")[2] for line in path.read_text().splitlines()] == comments
        assert bool(remedy["elsewhere"]) is (config.read_text() != before[config])
        values = dict(leaves(load().values))  # type: ignore[arg-type]
        assert {key: values[key] for key, _ in leaves(grown({}, remedy["set"]))} == dict(
            leaves(grown({}, remedy["set"]))
        )
        capsys.readouterr()
        assert main(["check", "plan.yaml"]) == 0, capsys.readouterr().out


def tensor_remedy(capsys: Capture) -> tuple[int, int]:
    """The number of the remedy that is a tensor degree alone, and the degree."""
    found = enumerate(remedies(capsys), 1)
    return next((n, r["set"]["parallelism.tensor"]) for n, r in found if set(r["set"]) == {"parallelism.tensor"})


@pytest.mark.slow
def test_the_tensor_degree_is_the_configs(capsys: Capture) -> None:
    """Every format says it, and none of the plans does."""
    written = {"megatron": "TP=", "accelerate": "tp_size: ", "deepspeed": '"autotp_size": ', "torchtitan": "= "}
    for format in PLANS:
        plan, config = write(format)
        own = plan.read_text()
        number, degree = tensor_remedy(capsys)
        assert main(["suggest", "plan.yaml", "--apply", str(number)]) == 0
        capsys.readouterr()
        assert f"{written[format]}{degree}" in config.read_text()
        assert plan.read_text() == own


@pytest.mark.slow
def test_a_key_that_its_config_does_not_mean_is_left_alone(capsys: Capture) -> None:
    """One process alone reads no tensor degree out of Accelerate's config: the plan says it."""
    plan, config = write("accelerate")
    config.write_text(ACCELERATE.replace("FSDP", "'NO'"))
    before = config.read_text()
    number, degree = tensor_remedy(capsys)
    assert main(["suggest", "plan.yaml", "--apply", str(number)]) == 0
    assert config.read_text() == before
    assert f"tensor: {degree}" in plan.read_text()


@pytest.mark.slow
def test_a_servers_own_arguments_say_what_is_served(capsys: Capture) -> None:
    """Megatron-LM's longest sequence and most requests are the plan's, and are changed where they stand."""
    _, config = write("megatron")
    values = dict(leaves(load().values))  # type: ignore[arg-type]
    assert (values["inference.context_length"], values["inference.batch_size"]) == (8192, 24)
    number = next(n for n, r in enumerate(remedies(capsys), 1) if set(r["set"]) == {"inference.context_length"})
    assert main(["suggest", "plan.yaml", "--apply", str(number)]) == 0
    assert "--inference-max-seq-length 8192" not in config.read_text()
    assert "--seq-length 4096" in config.read_text()


@pytest.mark.parametrize("format", PLANS)
def test_what_is_trainings_is_left_there(format: str) -> None:
    """No key of training, and none that cuts a training job alone, comes into a plan that serves."""
    write(format)
    document = load()
    assert isinstance(document.values, dict)
    assert "training" not in document.values
    assert set(document.values.get("parallelism", {})) <= {"tensor", "pipeline", "expert", "expert_tensor"}
    assert [f.code for f in document.findings if f.severity == "error"] == []


def test_a_training_plan_takes_nothing_of_a_server() -> None:
    """The same script as the source of a training plan has no inference section."""
    plan, _ = write("megatron")
    plan.write_text("memcheck: 1\nsource: {megatron: ./serve.sh}\nhardware: {gpu: h200}\n")
    document = load()
    assert isinstance(document.values, dict)
    assert "inference" not in document.values
    assert document.values["training"]["micro_batch_size"] == 4
