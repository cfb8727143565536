"""``memcheck check`` where there is no plan: the configs that are there, and the command line that checks each."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.configs import nearby
from tests.cli.plans import write

Capture = pytest.CaptureFixture[str]

AXOLOTL = """\
base_model: mistralai/Mistral-7B-v0.1
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch
bf16: true
gradient_checkpointing: true
flash_attention: true
"""
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 1
seq_len = 8192

[activation_checkpoint]
mode = "selective"
"""
LAUNCH = """\
#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 \\
  --tensor-model-parallel-size 2 --use-distributed-optimizer --vocab-size 32000 --train-iters 10 --lr 1e-4
"""
TRL = """\
#!/bin/bash
#SBATCH --job-name=dpo
trl dpo --model_name_or_path Qwen/Qwen2.5-7B-Instruct --dataset_name org/pairs --per_device_train_batch_size 1 \\
  --max_length 2048 --bf16 --gradient_checkpointing
"""
DEEPSPEED = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 4}\n'
FOLDER = {
    "configs/lora of ours.yml": AXOLOTL,
    "configs/titan.toml": TORCHTITAN,
    "scripts/pretrain.sh": LAUNCH,
    "scripts/dpo.slurm": TRL,
    "configs/zero2.json": DEEPSPEED,
    "package.json": '{"name": "web", "dependencies": {}}\n',
    "pyproject.toml": '[project]\nname = "ours"\n',
    "ci.yml": "name: tests\non: push\njobs: {}\n",
    "setup.sh": "#!/bin/bash\npip install -r requirements.txt\n",
    ".hidden/lora.yml": AXOLOTL,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without a plan, to stand in."""
    (tmp_path / ".git").mkdir()
    for name, text in FOLDER.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(text: str) -> list[str]:
    """The command lines of a message."""
    return re.findall(r"^ +(memcheck check .*)$", text, re.MULTILINE)


def test_every_command_that_is_printed_checks_its_config(folder: Path, capsys: Capture) -> None:
    """One for each kind of config, with the GPU and the count only where the config does not say them."""
    assert main(["check"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    found = commands(streams.err)
    assert found == [
        "memcheck check 'configs/lora of ours.yml' --gpu h100-80gb --gpus-per-node 8",
        "memcheck check configs/titan.toml --gpu h100-80gb --gpus-per-node 8",
        "memcheck check scripts/dpo.slurm --gpu h100-80gb --gpus-per-node 8",
        "memcheck check scripts/pretrain.sh --gpu h100-80gb",
    ]
    assert "not everything is stated in configs/zero2.json: `memcheck check FILE` names what is missing" in streams.err
    for line in found:
        assert main([*shlex.split(line)[1:], "--format", "json"]) in (0, 1)
        (plan,) = json.loads(capsys.readouterr().out)["plans"]
        assert plan["estimate"] is not None


@pytest.mark.parametrize(("paths", "count"), [(["configs"], 2), (["configs", "scripts"], 4), (["scripts"], 2), ([], 4)])
def test_only_what_was_asked_for_is_searched(folder: Path, capsys: Capture, paths: list[str], count: int) -> None:
    """Folders that were named, else all of them; the options that were given are kept."""
    assert main(["check", *paths, "--gpu", "a100-80gb", "--nodes", "2"]) == 2
    found = commands(capsys.readouterr().err)
    assert len(found) == count
    assert all("--gpu a100-80gb --nodes 2" in line for line in found)


def test_a_folder_without_configs_says_what_a_plan_is(folder: Path, capsys: Capture) -> None:
    """Nothing is named that cannot be checked."""
    (folder / "web").mkdir()
    (folder / "web" / "package.json").write_text(FOLDER["package.json"], encoding="utf-8")
    assert main(["check", "web"]) == 2
    text = capsys.readouterr().err
    assert "`memcheck: 1`" in text
    assert not commands(text)


def test_configs_are_looked_for_only_where_there_is_no_plan(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has something to check, or may have nothing, does not pay for the search."""
    monkeypatch.setattr(nearby, "nearby", None)
    assert main(["check", "--allow-empty"]) == 0
    write(folder)
    assert main(["check"]) == 0
    assert capsys.readouterr().err == ""


def test_the_search_is_bounded(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many files and so many configs; the message says that there may be more."""
    many = folder / "many"
    many.mkdir()
    for number in range(30):
        (many / f"lora{number}.yml").write_text(AXOLOTL, encoding="utf-8")
    assert main(["check", "many"]) == 2
    assert "    and 26 more\n" in capsys.readouterr().err
    monkeypatch.setattr(nearby, "MOST_CONFIGS", 10)
    assert main(["check", "many"]) == 2
    assert "    and 6 more at least\n" in capsys.readouterr().err
    monkeypatch.setattr(nearby, "MOST_FILES", 3)
    read: list[str] = []
    start = nearby.read_start
    monkeypatch.setattr(nearby, "read_start", lambda path, limit: (read.append(path), start(path, limit))[1])
    assert main(["check", "many"]) == 2
    assert "    and more at least\n" in capsys.readouterr().err
    assert len(read) == 3


def test_names_and_data_do_no_harm(folder: Path, capsys: Capture) -> None:
    """A name that cannot be copied is left out, an option's name is a path, data and links are not read."""
    odd = folder / "odd"
    odd.mkdir()
    (odd / "a\x1b[31m.yml").write_text(AXOLOTL, encoding="utf-8")
    (odd / "large.json").write_text('{"zero_optimization": ' + '"' + "x" * 200_000 + '"}', encoding="utf-8")
    (odd / "gone.toml").symlink_to("/nowhere/lora.toml")
    (folder / "--fix.yml").write_text(AXOLOTL, encoding="utf-8")
    main(["check", "odd"])
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert not commands(text)
    main(["check"])
    found = commands(capsys.readouterr().err)
    assert found[0].startswith("memcheck check ./--fix.yml --gpu ")
    assert main(shlex.split(found[0])[1:]) in (0, 1)


JOB = """\
apiVersion: batch/v1
kind: Job
spec:
  template:
    spec:
      containers:
        - command: [torchrun, --nproc_per_node=4, -m, trl.scripts.sft]
          args: [--model_name_or_path, Qwen/Qwen2.5-0.5B, --per_device_train_batch_size, "1", --max_length, "1024", --bf16]
"""


@pytest.mark.parametrize("given", [[], ["--gpu", "a100-80gb"]], ids=["nothing", "gpu"])
def test_a_launch_in_a_platform_s_file_is_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, given: list[str]
) -> None:
    """With the GPU alone: its number is in the launch."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    (tmp_path / "service.yaml").write_text("apiVersion: v1\nkind: Service\nspec: {ports: []}\n", encoding="utf-8")
    assert main(["check", ".", *given]) == 2
    (line,) = commands(capsys.readouterr().err)
    assert line == f"memcheck check job.yaml --gpu {given[1] if given else 'h100-80gb'}"
    assert main(shlex.split(line)[1:]) in (0, 1)
    assert "4 x " in capsys.readouterr().out
