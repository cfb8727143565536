"""Text that looks like a number and is none: ``²``, of which ``str.isdigit`` is true, and more digits than Python reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.cli.write import width_of
from memcheck.families.registry import read_architecture
from memcheck.models.reader import ArchitectureError

NO_NUMBERS = ("²", "9" * 5000)
STEP = json.loads((Path(__file__).parent.parent / "models" / "written.json").read_text())["step3p5"]

PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {{gpu: h100-80gb, gpus_per_node: 8}}
training:
  framework: torchtitan
  micro_batch_size: 1
  sequence_length: 512
  optimizer: adamw
  options: {{selective_ac_option: "{0}"}}
"""
ARCHITECTURE = """\
memcheck: 1
model: gpt2
hardware: {{gpu: {{name: lab, memory_gib: 80, arch: "sm_{0}"}}}}
training: {{framework: pytorch, micro_batch_size: 1, sequence_length: 512, optimizer: adamw}}
"""
TITAN = """\
[job]
description = "a"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[activation_checkpoint]
mode = "selective"
selective_ac_option = "{0}"
"""
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
    "--seq-length {0} --micro-batch-size 1 --global-batch-size 8\n"
)
SWIFT = "export MAX_PIXELS={0}\nswift sft --model Qwen/Qwen2.5-VL-7B-Instruct --dataset x --max_length 2048\n"
FILES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "an option": ("plan.yaml", PLAN, ("check",)),
    "a GPU's architecture": ("plan.yaml", ARCHITECTURE, ("check",)),
    "torchtitan": ("a.toml", TITAN, ("import", "--gpu", "h100-80gb", "--gpus-per-node", "8")),
    "Megatron": ("a.sh", MEGATRON, ("import", "--gpu", "h100-80gb")),
    "ms-swift": ("a.sh", SWIFT, ("import", "--gpu", "h100-80gb", "--gpus-per-node", "8")),
}


@pytest.mark.parametrize("written", NO_NUMBERS, ids=("a superscript", "5,000 digits"))
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_number_is_an_answer_and_no_defect(
    name: str, written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Judged or refused in words, as any other text."""
    file, text, arguments = FILES[name]
    path = tmp_path / file
    path.write_text(text.format(written), encoding="utf-8")
    assert main([*arguments, str(path)]) in (0, 1)
    assert "defect" not in capsys.readouterr().err


@pytest.mark.parametrize("written", NO_NUMBERS, ids=("a superscript", "5,000 digits"))
def test_layers_that_are_no_numbers(written: str) -> None:
    """Step 3.7's list of layers with experts."""
    text: dict[str, Any] = {**STEP, "mlp_layer_types": None, "moe_layers_enum": f"3,{written}"}
    with pytest.raises(ArchitectureError, match="no list of layers"):
        read_architecture({"model_type": "step3p7", "text_config": text, "vision_config": {}})


@pytest.mark.parametrize("written", NO_NUMBERS, ids=("a superscript", "5,000 digits"))
def test_a_width_that_is_no_number(written: str) -> None:
    """Counts as none."""
    assert width_of(sys.stdout, {"COLUMNS": written}) == width_of(sys.stdout, {})
