"""What ``suggest`` says comes next is what can be done: it writes what it offers, and finds what `check` promises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main

Capture = pytest.CaptureFixture[str]

COMPARED = """\
memcheck: 1
model: qwen2.5-7b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training:
  framework: huggingface
  trainer: trl
  objective: dpo
  micro_batch_size: 8
  sequence_length: 4096
  precision: bf16-mixed
  optimizer: adamw
"""
UNCERTAIN = COMPARED.replace("{zero_stage: 3}", "{zero_stage: 3, gradient_sync: every}").replace(
    "micro_batch_size: 8", "micro_batch_size: 1\n  activation_checkpointing: full\n  gradient_accumulation_steps: 8"
)
SCRIPT = """\
torchrun --nproc_per_node 8 trl/scripts/sft.py --model_name_or_path meta-llama/Llama-3.1-8B --packing \\
  --per_device_train_batch_size 8 --max_length 8192 --bf16 --gradient_checkpointing --fsdp "full_shard auto_wrap"
"""
UNPACKED = """\
base_model: meta-llama/Llama-3.1-8B
sequence_len: 4096
sample_packing: false
adapter: lora
lora_r: 32
lora_target_linear: true
micro_batch_size: 32
optimizer: adamw_torch
bf16: true
gradient_checkpointing: true
flash_attention: true
"""
HARDWARE = ("--gpu", "a100-40gb", "--gpus-per-node", "1")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in an empty folder, on a wide screen without colours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("NO_COLOR", "1")
    texts = {"compared.yaml": COMPARED, "uncertain.yaml": UNCERTAIN, "sft.sh": SCRIPT, "unpacked.yml": UNPACKED}
    for name, text in texts.items():
        Path(name).write_text(text)


def told(capsys: Capture, *arguments: str) -> str:
    """What ``suggest`` prints."""
    main(["suggest", *arguments])
    return capsys.readouterr().out


@pytest.mark.slow
def test_each_suggestion_of_a_plan_can_be_written(capsys: Capture) -> None:
    """Also one that sets keys of sections which the plan does not have."""
    out = told(capsys, "compared.yaml")
    assert "memcheck cannot write it" not in out
    assert "next: write one into the file: --apply N" in out
    for number in (1, 2):
        Path("compared.yaml").write_text(COMPARED)
        assert main(["suggest", "compared.yaml", "--apply", str(number)]) == 0
        assert main(["check", "compared.yaml", "-q"]) == 0
        capsys.readouterr()


@pytest.mark.slow
def test_no_suggestion_holds_a_change_without_effect(capsys: Capture) -> None:
    """How a reference is wrapped makes no difference where none is held."""
    main(["suggest", "compared.yaml", "--format", "json"])
    for remedy in json.loads(capsys.readouterr().out)["remedies"]:
        if remedy["set"].get("training.reference") == "precomputed":
            assert "training.options.reference_fsdp" not in remedy["set"]


def test_a_config_is_not_said_to_be_written(capsys: Capture) -> None:
    """The next step is one that exists; asked to write all the same, it shows values as YAML has them."""
    hardware = ("--gpu", "h100-80gb", "--gpus-per-node", "8")
    out = told(capsys, "sft.sh", *hardware)
    assert "  1. " in out
    assert "--apply" not in out
    assert "cannot write it" not in out
    assert "memcheck edits plans, not configs" in out
    Path("slurm.sh").write_text("#SBATCH --nodes=1\n#SBATCH --gres=gpu:h100:8\n" + SCRIPT)
    assert main(["suggest", "slurm.sh", "--apply", "1"]) == 2
    error = capsys.readouterr().err
    assert "is a config, and suggest edits plans" in error
    assert "`memcheck import slurm.sh --output plan.yaml`" in error
    assert "True" not in error
    assert "{'" not in error


def codes(capsys: Capture, *arguments: str) -> set[str]:
    """The rules that report something in ``check``."""
    main(["check", *arguments, "--format", "json"])
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    return {finding["code"] for finding in plan["diagnostics"]}


def test_what_ends_an_uncertainty_is_suggested(capsys: Capture) -> None:
    """`check` names suggest for a plan that passes and is uncertain: each suggestion ends the warning."""
    assert "MEM104" in codes(capsys, "uncertain.yaml")
    out = told(capsys, "uncertain.yaml")
    assert "the plan passes, but it is uncertain: " in out
    assert "nothing to do" not in out
    assert main(["suggest", "uncertain.yaml", "--apply", "1"]) == 0
    assert not {"MEM104", "MEM101", "MEM102"} & codes(capsys, "uncertain.yaml")


def test_rows_that_are_not_packed_are_named_by_their_rule(capsys: Capture) -> None:
    """The rule that `check` names; suggestions fit at the limit of a row."""
    out = told(capsys, "unpacked.yml", *HARDWARE)
    assert "GiB (MEM108). The least change" in out
    assert "MEM104" not in out
    assert "  1. " in out


def test_an_uncertain_plan_without_a_way_is_said_to_be_one(capsys: Capture) -> None:
    """With all kept that may change, nothing was found; that is not the same as nothing to do."""
    kept = [part for key in ("training", "parallelism", "hardware") for part in ("--keep", key)]
    out = told(capsys, "uncertain.yaml", *kept)
    assert "No change was found" in out
    assert "nothing to do" not in out
