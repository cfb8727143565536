"""What a Python file takes from its command line by click, Hydra, words, files of values, and objects of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.configs.importing import import_config
from memcheck.configs.types import ReadSetting

HEAD = """\
import sys, os, yaml, click, hydra, tyro, typer, dataclasses
from dataclasses import dataclass, field
from types import SimpleNamespace
from omegaconf import OmegaConf
from pydantic import BaseModel, Field
from transformers import HfArgumentParser, TrainingArguments, AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer, TrlParser
MODEL = "Qwen/Qwen2.5-0.5B"
def train(model, batch, length=512):
    SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=batch, max_length=length, bf16=True)).train()
"""
FILES = {
    "train.yaml": "model: Qwen/Qwen2.5-0.5B\ntrain: {batch: 3}\n",
    "train.toml": "model = 'Qwen/Qwen2.5-0.5B'\n[train]\nbatch = 3\n",
    "flat.yaml": "model: Qwen/Qwen2.5-0.5B\nbatch: 3\n",
    "conf/config.yaml": "defaults: [_self_, {model: small}]\ntrain: {batch: 3}\n",
    "conf/model/small.yaml": "name: Qwen/Qwen2.5-0.5B\n",
}
ALONE = {
    "Hydra": "@hydra.main(version_base=None, config_path='conf', config_name='config')\n"
    "def main(cfg):\n    train(cfg.model.name, cfg.train.batch)\nmain()\n",
    "click": "@click.command()\n@click.option('--batch', default=3, type=int)\ndef main(batch):\n    train(MODEL, batch)\nmain()\n",
    "typer": "def main(batch: int = typer.Option(3, help='b')):\n    train(MODEL, batch)\ntyper.run(main)\n",
    "tyro": "@dataclass\nclass C:\n    batch: int = 3\nc = tyro.cli(C)\ntrain(MODEL, c.batch)\n",
    "words": "batch = int(sys.argv[1]) if len(sys.argv) > 1 else 3\ntrain(MODEL, batch)\n",
    "usage": "if len(sys.argv) > 2:\n    print('usage')\n    sys.exit(1)\ntrain(MODEL, 3)\n",
    "a file of the words": "path = sys.argv[1] if len(sys.argv) > 1 else 'train.yaml'\n"
    "c = OmegaConf.load(path)\ntrain(c.model, c.train.batch)\n",
    "TOML": "import tomllib\nc = tomllib.load(open('train.toml', 'rb'))\ntrain(c['model'], c['train']['batch'])\n",
    "merge": "c = OmegaConf.merge(OmegaConf.load('train.yaml'), OmegaConf.create({'train': {'length': 512}}))\n"
    "train(c.model, c.train.batch)\n",
    "class method": "@dataclass\nclass C:\n    batch: int = 8\n    @classmethod\n    def load(cls, path):\n"
    "        return cls(batch=yaml.safe_load(open(path))['train']['batch'])\ntrain(MODEL, C.load('train.yaml').batch)\n",
    "static method": "class C:\n    @staticmethod\n    def batch(more):\n        return more + 1\ntrain(MODEL, C().batch(2))\n",
    "property": "class C:\n    @property\n    def batch(self):\n        return 3\ntrain(MODEL, C().batch)\n",
    "pydantic": "class T(BaseModel):\n    batch: int = Field(8, gt=0)\nclass C(BaseModel):\n    model: str\n    train: T\n"
    "c = C.model_validate(yaml.safe_load(open('train.yaml')))\ntrain(c.model, c.train.batch)\n",
    "a field of pydantic": "class C(BaseModel):\n    batch: int = Field(3, gt=0)\ntrain(MODEL, C().batch)\n",
    "comprehension": "d = {k: v for k, v in yaml.safe_load(open('flat.yaml')).items() if k != 'model'}\ntrain(MODEL, **d)\n",
    "getattr": "c = SimpleNamespace(**{'a': 1})\ntrain(MODEL, getattr(c, 'batch', 3))\n",
    "replace": "@dataclass\nclass C:\n    batch: int = 8\ntrain(MODEL, dataclasses.replace(C(), batch=3).batch)\n",
    "parse_yaml_file": "@dataclass\nclass C:\n    batch: int = 8\n    model: str = ''\n"
    "(c,) = HfArgumentParser(C).parse_yaml_file('flat.yaml')\ntrain(c.model, c.batch)\n",
}  # fmt: skip


def read(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> dict[str, object]:
    """The settings of a script with its files around it."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    found = import_config("train.py", (HEAD + body).encode(), {"hardware.gpu": ReadSetting("a100-80gb", "test")})
    assert [each.message for each in found.problems] == []
    return {key: each.value for key, each in found.settings.items()}


@pytest.mark.parametrize("way", ALONE)
def test_a_file_alone(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its defaults and the files that it names say the job: never the default of a class where a file says more."""
    said = read(tmp_path, monkeypatch, ALONE[way])
    assert (said["model.name"], said["training.micro_batch_size"]) == ("Qwen/Qwen2.5-0.5B", 3)


HF = """\
@dataclass
class C:
    model: str = ""
    batch: int = 8
if len(sys.argv) == 2 and sys.argv[1].endswith(".yaml"):
    (c,) = HfArgumentParser(C).parse_yaml_file(yaml_file=os.path.abspath(sys.argv[1]))
else:
    (c,) = HfArgumentParser(C).parse_args_into_dataclasses()
train(c.model, c.batch)
"""
LAUNCHED = {
    "python train.py flat.yaml": (HF, 3),
    "torchrun --nproc_per_node 1 train.py --model Qwen/Qwen2.5-0.5B --batch 4": (HF, 4),
    "python train.py --batch 5": (ALONE["click"], 5),
    "python train.py train.batch=6": (ALONE["Hydra"], 6),
    "python train.py --config flat.yaml --batch 7": (
        (
            "@dataclass\nclass C:\n    model: str = ''\n    batch: int = 8\n"
            "(c,) = TrlParser(C).parse_args_and_config()\ntrain(c.model, c.batch)\n"
        ),
        7,
    ),
}


@pytest.mark.parametrize("line", LAUNCHED)
def test_a_launch_line(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words, files and options go before what the file says."""
    body, batch = LAUNCHED[line]
    for name, text in {**FILES, "train.py": HEAD + body}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = import_config("launch.sh", f"{line}\n".encode(), {"hardware.gpu": ReadSetting("a100-80gb", "test")})
    assert [each.message for each in found.problems] == []
    assert found.settings["training.micro_batch_size"].value == batch


def test_a_model_of_the_words_is_a_placeholder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch line is asked for, as for the default of an option."""
    monkeypatch.chdir(tmp_path)
    body = "train(sys.argv[1] if len(sys.argv) > 1 else MODEL, 3)\n"
    found = import_config("train.py", (HEAD + body).encode(), {"hardware.gpu": ReadSetting("a100-80gb", "test")})
    assert ["launch line" in each.help for each in found.problems] == [True]
