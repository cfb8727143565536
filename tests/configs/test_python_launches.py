"""A script that leaves its model to its command line is read as the launch lines around it start it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.configs.importing import Imported, import_config
from memcheck.configs.types import ReadSetting

SCRIPT = """\
import argparse
from trl import SFTConfig, SFTTrainer
p = argparse.ArgumentParser()
p.add_argument("--model", default="gpt2")
p.add_argument("--batch", "-b", type=int, default=8)
o = p.parse_args()
SFTTrainer(o.model, SFTConfig(per_device_train_batch_size=o.batch, max_length=512)).train()
"""
ARGUMENTS = "--model Qwen/Qwen2.5-0.5B --batch 2"
LINE = f"python src/train.py {ARGUMENTS}"
PLACES = {
    "a block of a page": {"README.md": f"# Train\n\n```bash\n{LINE}\n```\n"},
    "a prompt": {"README.md": f"    $ CUDA_VISIBLE_DEVICES=0 {LINE}\n"},
    "several lines": {"docs/use.md": "python src/train.py \\\n    --model Qwen/Qwen2.5-0.5B \\\n    --batch 2\n"},
    "a page beside the script": {"src/README.md": f"python train.py {ARGUMENTS}\n"},
    "a module": {"README.md": f"python -m src.train {ARGUMENTS}\n"},
    "Windows": {"README.md": f".venv\\Scripts\\python.exe src\\train.py {ARGUMENTS}\n"},
    "PowerShell": {"README.md": "python src/train.py `\n  --model Qwen/Qwen2.5-0.5B `\n  --batch 2\n"},
    "a shell script": {"run.sh": f"B=2\npip install --upgrade x\npython src/train.py {ARGUMENTS[:-1]}$B\npython eval.py --n 1\n"},
    "an array": {"scripts/run.sh": f'E=( --k 1 )\nA=( {ARGUMENTS} )\npython src/train.py "${{A[@]}}"\npython e.py "${{E[@]}}"\n'},
    "a Makefile": {"Makefile": f"B = 2\ntrain:\n\t@python src/train.py {ARGUMENTS[:-1]}$(B)\n"},
    "a cell": {"run.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": [f"!{LINE}\n"]}]}, indent=1)},
    "a workflow": {".github/workflows/train.yml": f"jobs:\n  a:\n    steps:\n      - run: {LINE}\n"},
    "the same twice, and a trial": {"README.md": f"{LINE}\n{LINE} --smoke\npython src/train.py --help\n", "run.sh": LINE},
    "what the reader fills in is no line": {"README.md": f"python src/train.py --model <name>\n{LINE}\n"},
}  # fmt: skip
OPEN = {
    "no line": {},
    "another script": {"README.md": f"python src/trainer.py {ARGUMENTS}\npython other/train.py {ARGUMENTS}\n"},
    "two jobs": {"README.md": f"{LINE}\n{LINE}0\n"},
    "an option of one letter": {"README.md": "python src/train.py --model Qwen/Qwen2.5-0.5B -b 2\n"},
    "a variable that nobody sets": {"run.sh": f"python src/train.py --model $M --batch 2\n{LINE}\n"},
    "an option that it lacks": {"README.md": f"{LINE} --depth 4\n"},
}


def read(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], script: str = SCRIPT) -> Imported:
    """The import of ``src/train.py`` in a repository with these files."""
    for name, text in {".git/HEAD": "", "src/train.py": script, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    stated = {"hardware.gpu": ReadSetting("a100-80gb", "test")}
    return import_config("src/train.py", script.encode(), stated)


@pytest.mark.parametrize("files", PLACES.values(), ids=PLACES)
def test_the_launch_line_beside_a_script_says_its_job(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model and batch are those of the line, which the reading names."""
    found = read(tmp_path, monkeypatch, files)
    assert found.problems == ()
    assert found.settings["model.name"].value == "Qwen/Qwen2.5-0.5B"
    assert found.settings["training.micro_batch_size"].value == 2
    assert found.notes[0].message.startswith("the job is what this line starts: ")
    assert found.notes[0].location.path in files


@pytest.mark.parametrize("files", OPEN.values(), ids=OPEN)
def test_what_no_line_settles_is_asked_for(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A placeholder is never taken, and lines that do not agree are named."""
    (problem,) = read(tmp_path, monkeypatch, files).problems
    assert "give the launch line: memcheck check" in problem.help
    if any("train.py --model" in text for text in files.values()) and "other" not in str(files):
        assert "README.md:1" in problem.help or "run.sh:1" in problem.help


def test_the_script_itself_says_how_it_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its docstring and comments count, also from before it was moved, and a launcher's processes."""
    page = f'"""Train.\n\n  torchrun --nproc_per_node 4 tools/train.py \\\\\n      {ARGUMENTS}\n"""\n'
    found = read(tmp_path, monkeypatch, {}, page + SCRIPT)
    assert found.problems == ()
    assert found.settings["hardware.gpus_per_node"].value == 4
    assert found.notes[0].location.span.line == 3
    assert read(tmp_path, monkeypatch, {}, SCRIPT + f"# {LINE}\n").problems == ()


def test_a_launcher_beside_a_whole_script_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are taken; how a launcher's own config splits the job is asked for, unless the GPUs are stated."""
    whole = SCRIPT.replace("gpt2", "Qwen/Qwen2.5-0.5B").replace("o.model", "'Qwen/Qwen2.5-0.5B'")
    assert read(tmp_path, monkeypatch, {"README.md": "python src/train.py --batch 1\n"}, whole).notes[0].location.path
    found = read(tmp_path, monkeypatch, {"README.md": "torchrun --nproc_per_node 4 src/train.py\n"}, whole)
    assert (found.problems, found.settings["hardware.gpus_per_node"].value) == ((), 4)
    lost = {"README.md": "accelerate launch --config_file z.yaml src/train.py\n"}
    (problem,) = read(tmp_path, monkeypatch, lost, whole).problems
    assert "there is no `z.yaml`" in problem.message
    assert "--gpus-per-node 8" in problem.help


def test_only_files_of_the_repository_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page above the repository, or behind a link, says nothing."""
    (tmp_path / "README.md").write_text(LINE)
    inside = tmp_path / "repo"
    (inside / "docs").mkdir(parents=True)
    (inside / "docs" / "use.md").symlink_to(tmp_path / "README.md")
    assert read(inside, monkeypatch, {}).problems


ZERO = "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 3}\n"
LOOP = """\
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(rows, batch_size=2, shuffle=True):
    Accelerator().backward(model(**tokenizer(batch, max_length=512, truncation=True)).loss)
"""
IMPORTS = "import torch\nfrom accelerate import Accelerator\nfrom torch.utils.data import DataLoader\n"


def test_what_accelerate_is_told_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its config and its own arguments say how the job is split and cast; a loop of one's own may not heed them."""
    whole = SCRIPT.replace("o.model", "'Qwen/Qwen2.5-0.5B'").replace("gpt2", "Qwen/Qwen2.5-0.5B")
    loop = f"{IMPORTS}from transformers import AutoModelForCausalLM\n{LOOP}"
    stage, recipe = "parallelism.zero_stage", "training.precision.recipe"
    for words, script, key, value in (
        ("--config_file z.yaml src/train.py", whole, stage, 3),
        ("--config_file z.yaml src/train.py", whole, "hardware.gpus_per_node", 8),
        ("--num_processes 4 --use_fsdp src/train.py", whole, stage, 3),
        ("--use_deepspeed --zero_stage 2 src/train.py", whole, "training.framework", "deepspeed"),
        ("--mixed_precision bf16 src/train.py", loop, recipe, "bf16-mixed"),
        ("--use_fsdp src/train.py", f"{loop}m = Accelerator().prepare_model(model)\n", stage, 3),
        ("src/train.py --model gpt2", whole, stage, 0),
    ):
        line = {"README.md": f"accelerate launch {words}\n", "z.yaml": ZERO}
        found = read(tmp_path, monkeypatch, line, script)
        assert (found.problems, found.settings[key].value) == ((), value), words
    (problem,) = read(
        tmp_path, monkeypatch, {"README.md": "accelerate launch --use_fsdp src/train.py --model gpt2\n"}, loop
    ).problems
    assert "whether this loop heeds it" in problem.message
