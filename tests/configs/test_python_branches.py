"""Scripts that say a thing in two places, or leave it to a file: what is alike is known, and the rest asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.types import ConfigError
from tests.configs.test_read_python import BASE, SHORT, asks, read, values

MODEL = "AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B'"
TRAINED = "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=512)).train()\n"


@pytest.mark.parametrize(
    "code",
    [
        f"if unknown():\n    model = {MODEL}, dtype=torch.bfloat16)\nelse:\n    model = {MODEL}, dtype=torch.bfloat16)\n",
        (
            f"def make():\n    if unknown():\n        return {MODEL}, dtype='bfloat16'), 1\n    return {MODEL}, dtype='bfloat16'), 2\n"
            "model, other = make()\n"
        ),
        (
            f"def make():\n    return {MODEL}, dtype='bfloat16'), 1\nif unknown():\n    model, other = make()\nelse:\n"
            "    model, other = make()\n"
        ),
        f"model = {MODEL}, dtype='bfloat16') if unknown() else {MODEL}, dtype='bfloat16')\n",
        # a folder that is called as the model, or a cache of the Hub
        (
            "N = 'Qwen/Qwen2.5-0.5B'\ndef find():\n    for each in [p for p in ('', 'models/Qwen2.5-0.5B') if p]:\n"
            "        if os.path.isdir(each):\n            return each\n    return N\n"
            "model = AutoModelForCausalLM.from_pretrained(find(), dtype=torch.bfloat16)\n"
        ),
        (
            "N = 'Qwen/Qwen2.5-0.5B'\nif os.path.isdir('c' + os.sep + N.replace('/', '__')):\n    M = 'c/Qwen__Qwen2.5-0.5B'\n"
            "else:\n    M = N\nmodel = AutoModelForCausalLM.from_pretrained(M)\n"
        ),
    ],
)
def test_what_both_branches_say_alike_is_known(code: str) -> None:
    """Two models of one name are one for what is asked, wherever they come from."""
    found = values(BASE + code + TRAINED)
    assert found["model.name"] == "Qwen/Qwen2.5-0.5B"


def test_what_branches_say_differently_is_asked_for_alone() -> None:
    """The 4 bits of one branch leave the model's name known."""
    code = f"if unknown():\n    model = {MODEL}, load_in_4bit=True)\nelse:\n    model = {MODEL}, load_in_4bit=False)\n"
    message = asks(BASE + code + TRAINED)
    assert "load_in_4bit" in message
    assert "model_name_or_path" not in message


def test_effects_inside_the_condition_that_makes_the_model_are_known() -> None:
    """Both the model and its adapters are there, or neither is."""
    code = (
        f"if unknown():\n    model = {MODEL}, dtype=torch.bfloat16)\n    model = get_peft_model(model, LoraConfig(r=8, "
        f"target_modules=['q_proj']))\n    {TRAINED}"
    )
    assert values(BASE + code)["training.lora.rank"] == 8


def test_accelerate_says_how_many_processes_there_are() -> None:
    """As many as the stated GPUs, or one."""
    code = f"from accelerate import Accelerator\na = Accelerator()\nB = 1 if a.num_processes > 1 else 4\nmodel = {MODEL})\n"
    trained = TRAINED.replace("per_device_train_batch_size=2", "per_device_train_batch_size=B")
    assert values(BASE + code + trained)["training.micro_batch_size"] == 4


def test_a_notebook_of_marimo_is_read_cell_by_cell() -> None:
    """Each cell is a function, whose names the next cells have."""
    code = (
        "import marimo\napp = marimo.App()\n\n@app.cell\ndef _():\n    B = 4\n    return (B,)\n\n"
        '@app.cell(hide_code=True)\ndef _(B):\n    SFTTrainer("Qwen/Qwen2.5-0.5B", SFTConfig(max_length=512, '
        "per_device_train_batch_size=B)).train()\n    return\n"
    )
    assert values(BASE + code)["training.micro_batch_size"] == 4


def test_the_default_of_an_option_that_names_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A YAML next to the script is a part of the job, which a placeholder on the command line is not."""
    (tmp_path / "run.yaml").write_text("model: Qwen/Qwen2.5-0.5B\nbatch: 4\n")
    code = (
        "import argparse, yaml\np = argparse.ArgumentParser()\np.add_argument('--config', default='run.yaml')\n"
        "with open(p.parse_args().config) as file:\n    c = yaml.safe_load(file)\n"
        "SFTTrainer(c['model'], SFTConfig(max_length=512, per_device_train_batch_size=c['batch'])).train()\n"
    )
    monkeypatch.chdir(tmp_path)
    found = read(BASE + code)
    assert found.problems == ()
    assert found.settings["training.micro_batch_size"].value == 4
    assert any("--config run.yaml" in each.message for each in found.notes)


@pytest.mark.parametrize("name", ["someone/never-heard-of-7b", "/data/models/mine"])
def test_a_model_that_is_not_known_is_asked_for(name: str) -> None:
    """With the option that answers; so is what lies in a folder."""
    message = asks(SHORT.replace("Qwen/Qwen2.5-0.5B", name))
    assert name in message
    assert "add, with your own values: --model llama-3.1-8b" in message


def test_an_optimizer_without_a_memory_model_is_answered_with_those_that_have_one() -> None:
    """The list, and the option that states one."""
    message = asks(SHORT.replace("max_length=512", "max_length=512, optim='galore_adamw'"))
    assert "adamw-8bit" in message
    assert "--set training.optimizer=adamw" in message


@pytest.mark.parametrize(
    "code",
    [
        "import json\nsize = json.loads(r'''\n{\"size\": 4}\n''')['size']\n",
        "from typing import cast\nsize = cast(int, 4)\n",
        "size = 4 if isinstance('all-linear', str) and not isinstance(None, (int, float)) else unknown()\n",
        "size = 4 if getattr(torch, 'float16') is not None else unknown()\n",
    ],
)
def test_what_python_itself_decides_is_known(code: str) -> None:
    """Types, casts and texts of JSON hang on nothing outside the file."""
    made = f"model = {MODEL}, dtype=getattr(torch, 'bfloat16'))\n"
    found = values(BASE + code + made + TRAINED.replace("size=2", "size=size"))
    assert found["training.micro_batch_size"] == 4
    assert found["training.precision.params"] == "bf16"


@pytest.mark.parametrize(
    "root", ["Path(__file__).resolve().parents[1]", "os.path.dirname(os.path.dirname(os.path.abspath(__file__)))"]
)
def test_a_file_beside_the_scripts_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """The folder above that of a script is part of its repository."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "job.yaml").write_text("rows: 6\n", encoding="utf-8")
    code = (
        f"import os, yaml\nfrom pathlib import Path\nwith open(Path({root}) / 'job.yaml') as file:\n"
        f"    job = yaml.safe_load(file)\nmodel = {MODEL}, dtype='bfloat16')\n"
    )
    monkeypatch.chdir(tmp_path / "scripts")
    found = values(BASE + code + TRAINED.replace("size=2", "size=job['rows']"))
    assert found["training.micro_batch_size"] == 6


def test_a_trainer_of_a_module_beside_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that makes no trainer itself imports one from the folder above; a notebook opens a file there, too."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "scripts").mkdir()
    made = f"{BASE}class Runs:\n    def start(self, b):\n        SFTTrainer('gpt2', SFTConfig(per_device_train_batch_size=b)).train()\n"
    (tmp_path / "src" / "runs.py").write_text(made)
    (tmp_path / "b.yaml").write_text("b: 3\n")
    monkeypatch.chdir(tmp_path / "scripts")
    code = "import os, yaml\nfrom src.runs import Runs\nroot = os.path.abspath(os.path.join(os.getcwd(), '..'))\n"
    code += "Runs().start(yaml.safe_load(open(os.path.join(root, 'b.yaml')))['b'])\n"
    assert values(code)["training.micro_batch_size"] == 3
    with pytest.raises(ConfigError, match="no trainer is made in it"):
        read("from nowhere.runs import Runs\nRuns().start(1)\n")
