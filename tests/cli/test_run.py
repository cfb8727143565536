"""``memcheck run``: scripts of one's own, run up to their trainer; those that reach none, and what is said of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.cli.run import in_options, of_line
from memcheck.errors import UsageError
from memcheck.guard.script import NoData, catalog_config


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    line = [sys.executable, "-m", "memcheck", "run", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "script"),
    [
        ("python3 train.py --lr 1", ["train.py", "--lr", "1"]),
        ("python3 -u train.py", ["train.py"]),
        ("python3 -m my.train --x", ["-m", "my.train", "--x"]),
        ("torchrun --nproc_per_node 4 train.py --x", ["train.py", "--x"]),
        ("accelerate launch --config_file a.yaml train.py", ["train.py"]),
        ("deepspeed --num_gpus 2 a/train.py", ["a/train.py"]),
    ],
)
def test_the_script_of_a_launch_is_found(line: str, script: list[str]) -> None:
    """With its arguments; a launcher's own are left out."""
    python, found = of_line(line.split())
    assert found == script
    assert Path(python).name.startswith("python")


@pytest.mark.parametrize("line", ["bash run.sh", "python3", "torchrun --nproc_per_node 2", "make train"])
def test_a_line_without_a_script_is_a_usage_error(line: str) -> None:
    """Nothing is run."""
    with pytest.raises(UsageError):
        of_line(line.split())


def test_nothing_is_run_without_a_gpu(tmp_path: Path) -> None:
    """There would be no verdict."""
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    result = run(tmp_path, "--", sys.executable, "train.py")
    assert (result.returncode, (tmp_path / "ran").exists()) == (2, False)
    assert "the GPU is not stated" in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(3)\n", "exit code 3"),
        ("raise ValueError('no data')\n", "failed on line 1 before its trainer: ValueError: no data"),
        ("print('hello')\n", "made no trainer"),
    ],
)
def test_a_script_that_reaches_no_trainer_is_exit_code_2(tmp_path: Path, text: str, said: str) -> None:
    """The reason and the line are said, and that the script is run; what it prints is no part of the plan."""
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(text)
    result = run(tmp_path, "--gpu", "l4", "--", sys.executable, "train.py")
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert "runs train.py up to its trainer, with your rights" in result.stderr


def test_a_python_without_transformers_says_so(tmp_path: Path) -> None:
    """The script's own Python decides."""
    (tmp_path / "transformers.py").write_text("raise ImportError('not here')\n")
    (tmp_path / "train.py").write_text("1\n")
    result = subprocess.run(
        [sys.executable, "-m", "memcheck", "run", "--gpu", "l4", "--", sys.executable, "-E", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "no trainer was reached" in result.stderr


def test_data_that_is_not_there_answers_everything() -> None:
    """What scripts do with data sets and tokenizers before a trainer."""
    data = NoData()
    assert len(data.map(lambda row: row, batched=True)["train"].select(range(10))) == 1
    assert list(data) == []
    assert "text" in data.column_names
    assert f"{data.eos_token}" == ""
    assert range(3)[data.pad_token_id] == 1
    with pytest.raises(AttributeError):
        _ = data.__torch_function__


def test_a_model_of_the_catalog_needs_no_network() -> None:
    """Its configuration is memcheck's own."""
    assert catalog_config("Qwen/Qwen2.5-0.5B") is not None
    assert catalog_config("nobody/knows") is None


def test_remedies_are_options_of_the_command() -> None:
    """The guard's keywords mean nothing on a command line."""
    assert in_options('state it: sequence_length=4096, settings={"training.head.labels": "2"}') == (
        "state it: --sequence-length 4096, --set training.head.labels=2"
    )


SCRIPT = """\
import argparse
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--model")
parser.add_argument("--batch", type=int)
given = parser.parse_args()
tokenizer = AutoTokenizer.from_pretrained(given.model)
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16, device_map="auto").to("cuda")
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))
args = TrainingArguments("out", per_device_train_batch_size=given.batch, bf16=True, optim="adamw_torch")
Trainer(model=model, args=args, train_dataset=[]).train()
"""


@pytest.mark.torch
def test_a_script_is_checked_by_what_its_trainer_was_given(tmp_path: Path) -> None:
    """Arguments that only the command line states; the plan that is written is judged as the run was."""
    for name in ("torch", "transformers", "peft"):
        pytest.importorskip(name)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "train.py", "--model", "Qwen/Qwen2.5-7B", "--batch", "2"]
    result = run(tmp_path, "--gpu", "a100-80gb", "--sequence-length", "2048", "--write", "plan.yaml", "--", *words)
    assert result.returncode == 0, result.stderr
    assert "micro_batch_size: 2" in result.stdout
    assert "method: lora" in result.stdout
    assert "pass  train  train.py" in result.stdout
    line = [sys.executable, "-m", "memcheck", "check", "plan.yaml"]
    assert subprocess.run(line, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    small = run(tmp_path, "--gpu", "t4", "--sequence-length", "2048", "--", *words)
    assert (small.returncode, "exceeds-capacity" in small.stdout) == (1, True)
    asked = run(tmp_path, "--gpu", "t4", "--", *words)
    assert (asked.returncode, "--sequence-length 4096" in asked.stderr) == (1, True)


@pytest.mark.torch
def test_trls_trainer_is_reached_before_it_prepares_data(tmp_path: Path) -> None:
    """A model by its name and adapters as an argument are built as the trainer builds them."""
    for name in ("torch", "trl", "peft", "datasets"):
        pytest.importorskip(name)
    (tmp_path / "train.py").write_text(
        "from datasets import load_dataset\nfrom peft import LoraConfig\nfrom trl import SFTConfig, SFTTrainer\n"
        "data = load_dataset('json', data_files='absent.jsonl')['train']\n"
        "config = SFTConfig('out', per_device_train_batch_size=2, max_length=1024, packing=True, bf16=True)\n"
        "SFTTrainer('Qwen/Qwen2.5-0.5B', config, train_dataset=data, peft_config=LoraConfig(r=4)).train()\n"
    )
    result = run(tmp_path, "--gpu", "l4", "--", sys.executable, "train.py")
    assert result.returncode == 0, result.stderr
    assert "rank: 4" in result.stdout
