"""Draws Python files and notebooks that nobody wrote: calls of trainers among code of every kind, and broken bytes.

A file is a function of its seed and number alone. None of them is ever run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from benchmarks.hostile_draw import Input

NAMES = ("model", "args", "config", "B", "L", "name", "x", "tokenizer", "self", "__name__", "os", "p", "lora")
MODELS = ("Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.1-8B", "unsloth/Meta-Llama-3.1-8B", "/data/m", "", "no/such-1b")
NUMBERS = ("0", "1", "-1", "2", "8", "64", "512", "2048", "10**18", "10**30", "1e308 * 10", "2**0.5", "0x10", "True")
WORDS = ("'adamw_8bit'", "'auto'", "None", "'\\x1b[31m'", "'\\u202e'", "''", "'a' * 99999", "...", "b'\\xff'", "'1e5'")
KEYWORDS = (
    "per_device_train_batch_size", "max_length", "max_seq_length", "bf16", "fp16", "optim", "packing", "r",
    "gradient_checkpointing", "use_gradient_checkpointing", "load_in_4bit", "quantization_config", "peft_config",
    "target_modules", "model", "args", "dtype", "torch_dtype", "deepspeed", "fsdp", "eval_strategy", "device_map",
    "gradient_accumulation_steps", "model_name", "full_finetuning", "lora_dropout", "output_dir", "no_such_key",
)  # fmt: skip
CALLS = (
    "SFTConfig", "SFTTrainer", "TrainingArguments", "Trainer", "DPOConfig", "DPOTrainer", "LoraConfig",
    "BitsAndBytesConfig", "AutoModelForCausalLM.from_pretrained", "get_peft_model", "Accelerator", "open",
    "prepare_model_for_kbit_training", "FastLanguageModel.from_pretrained", "FastLanguageModel.get_peft_model",
    "torch.cuda.is_bf16_supported", "os.environ.get", "yaml.safe_load", "json.loads", "dict", "int", "str", "getattr",
    "Path", "HfArgumentParser", "argparse.ArgumentParser", "unknown", "f", "C", "exec", "eval", "__import__", "max",
    "DataLoader", "torch.optim.AdamW", "bnb.optim.AdamW8bit", "torch.autocast", "model.backward", "pl.Trainer",
    "llama3_8b_pretrain_config", "OmegaConf.merge", "tyro.cli", "dataclasses.replace", "C.load", "C.model_validate",
    "TrlParser(C).parse_args_and_config", "HfArgumentParser(C).parse_yaml_file", "AutoBridge.from_hf_pretrained",
    "inspect.signature", "FSDP", "set", "pl.Trainer().fit", "tokenizer", "model.map", "deepspeed.initialize",
)  # fmt: skip
HEAD = (
    "import os, sys, json, yaml, torch, argparse\nfrom pathlib import Path\nfrom transformers import *\n"
    "from transformers import AutoModelForCausalLM, BitsAndBytesConfig, HfArgumentParser, Trainer, TrainingArguments\n"
    "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\nfrom accelerate import Accelerator\n"
    "from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer\nfrom unsloth import FastLanguageModel\n"
    "import click, dataclasses, hydra, tyro\nfrom omegaconf import OmegaConf\nfrom megatron.bridge import AutoBridge\n"
    "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\nfrom trl import TrlParser\n"
)
LOOP = (
    "import bitsandbytes as bnb, deepspeed, inspect, lightning as pl\nfrom torch.utils.data import DataLoader\n"
    "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\na = Accelerator(mixed_precision='bf16')\n"
    "d = DataLoader(p, batch_size=2, shuffle=True)\no = torch.optim.AdamW(model.parameters())\n"
    "for b in d:\n    a.backward(model(**b).loss)\n"
)
JOB = (
    "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
    "args = SFTConfig(per_device_train_batch_size=2, max_length=512)\nSFTTrainer(model, args=args).train()\n"
)
GOES_ON = " \\\n  "
GIVEN = (*NUMBERS, *MODELS, "$A", "<x>", "'a b'", "\x1b[31m")
ASKING = (
    "p = argparse.ArgumentParser()\np.add_argument('--model', default='gpt2')\n"
    "p.add_argument('--max_length', type=int)\np.add_argument('--r', type=int, default=2)\n"
    "o = p.parse_args()\nmodel = o.model\n"
)
MAGICS = ("%pip install trl", "!python train.py --lr 1 \\", "%%bash", "%%writefile a.py", "x = !ls", "?model", "%cd /")
TOKENS = (
    "\x00",
    "\ufeff",
    "\r",
    "\t",
    "(" * 120,
    "[" * 300,
    "lambda: " * 200,
    "\\\n",
    "'''",
    '"""',
    "\x0c",
    "\U0001f4a5",
)


def draw_script(seed: int, number: int) -> Input:
    """File ``number`` of a seed, and the arguments of ``check``."""
    chance = Random(f"script.{seed}.{number}")  # noqa: S311 - nothing is secret
    text = _text(chance)
    name, data = "train.py", text.encode("utf-8", "surrogatepass")
    if chance.random() < 0.4:
        name, data = "job.ipynb", _notebook(chance, text).encode("utf-8", "surrogatepass")
    if chance.random() < 0.2:
        data = _broken(chance, data)
    stated = ["--gpu", chance.choice(("a100-80gb", "t4", "l4", "mi300x") * 5 + ("no-such-gpu",))]
    if chance.random() < 0.4:
        stated += ["--model", "llama-3.1-8b", "--sequence-length", "512", "--micro-batch-size", "1"]
    if chance.random() < 0.2:
        stated += ["--define", f"{chance.choice(NAMES)}={chance.choice(NUMBERS)}"]
    files = {name: data}
    if chance.random() < 0.2:
        files["run.yaml"] = chance.choice((b"model: gpt2\nbatch: 4\n", b"a: &a [*a, *a]\n", b"[" * 500, b"\xff\xfe"))
    if chance.random() < 0.3:
        files |= _beside(chance, name)
    return Input("script", files, {}, (), (name, *stated))


def _beside(chance: Random, script: str) -> dict[str, bytes]:
    """A page, a shell script or a Makefile with launch lines of the script, and the options that it takes."""
    lines = []
    for _ in range(chance.randint(1, 6)):
        start = chance.choice(("", "$ ", "# ", "> ", "\t@", "!", '    "!', "A=1 ", "- run: ", "srun "))
        runs = chance.choice(
            ("python", "torchrun --nproc_per_node 2", "accelerate launch", "python -m", "uv run python")
        )
        named = chance.choice((script, f"./{script}", f"$D/{script}", "train", "src.train", "x.py"))
        words = [start + runs, named]
        for _ in range(chance.randint(0, 4)):
            words += ["--" + chance.choice(KEYWORDS) + chance.choice((" ", "=", GOES_ON)), chance.choice(GIVEN)]
        lines.append(" ".join((*words, chance.choice(("", "", "\\", "| tee x", "&& ls")))))
    page = "\n".join(lines).encode("utf-8", "surrogatepass")
    page = _broken(chance, page) if chance.random() < 0.2 else page
    return {chance.choice(("README.md", "run.sh", "Makefile", "use.rst", "job.slurm", "other.ipynb")): page}


def _text(chance: Random) -> str:
    lines = [HEAD] if chance.random() < 0.9 else []
    lines += [_statement(chance, 0) for _ in range(chance.choice((1, 3, 8, 20, 60)))]
    if chance.random() < 0.7:
        lines.insert(chance.randint(0, len(lines)), JOB)
    elif chance.random() < 0.7:
        lines.insert(chance.randint(0, len(lines)), LOOP)
    lines += [_statement(chance, 0) for _ in range(chance.randint(0, 4))]
    if chance.random() < 0.4:
        lines.insert(
            min(len(lines), 1), ASKING + chance.choice((JOB, JOB.replace("2", "o.r").replace("512", "o.max_length")))
        )
    if chance.random() < 0.15:
        lines.insert(chance.randint(0, len(lines)), chance.choice(MAGICS))
    if chance.random() < 0.1:
        lines.insert(chance.randint(0, len(lines)), chance.choice(TOKENS))
    return "\n".join(lines) + "\n"


def _statement(chance: Random, depth: int) -> str:
    name = chance.choice(NAMES)
    if depth > 3:
        return f"{name} = {_value(chance, 0)}"
    return chance.choice(STATEMENTS)(chance, name, depth)


def _body(chance: Random, depth: int, indent: str = "    ") -> str:
    """A statement inside another."""
    return "\n".join(f"{indent}{line}" for line in _statement(chance, depth + 1).split("\n"))


STATEMENTS: tuple[Callable[[Random, str, int], str], ...] = (
    lambda chance, name, _: f"{name} = {_value(chance, 0)}",
    lambda chance, name, _: f"{name}.{chance.choice(KEYWORDS)} = {_value(chance, 0)}",
    lambda chance, name, _: f"{name}[{_value(chance, 1)}] = {_value(chance, 0)}",
    lambda chance, name, _: f"{name}, {chance.choice(NAMES)} = {_value(chance, 0)}, {_value(chance, 1)}",
    lambda chance, _, __: _value(chance, 0),
    lambda chance, _, depth: f"if {_value(chance, 1)}:\n{_body(chance, depth)}\nelse:\n{_body(chance, depth)}",
    lambda chance, name, depth: f"for {name} in {_value(chance, 0)}:\n{_body(chance, depth)}",
    lambda chance, _, depth: f"while {_value(chance, 1)}:\n{_body(chance, depth)}",
    lambda chance, name, depth: (
        f"def f({name}={_value(chance, 1)}, *a, **k):\n{_body(chance, depth)}\n"
        f"    return f({name}) or {_value(chance, 0)}"
    ),
    lambda chance, name, _: (
        f"class C(TrainingArguments):\n    {name}: int = {_value(chance, 1)}\n    def __init__(self):\n        C()"
    ),
    lambda chance, name, depth: (
        f"@click.option('--{name}', default={_value(chance, 2)})\n@hydra.main(config_path='.', config_name='r')\n"
        f"def main({name}, cfg):\n{_body(chance, depth)}\nmain()"
    ),
    lambda chance, name, depth: (
        f"class C(BaseModel):\n    {name}: C = {_value(chance, 1)}\n    @classmethod\n    def load(cls, p):\n"
        f"        return cls({name}=p)\n    @property\n    def x(self):\n{_body(chance, depth, ' ' * 8)}"
    ),
    lambda chance, name, _: f"{name} = {{k: {_value(chance, 1)} for k, v in {name}.items() if {_value(chance, 1)}}}",
    lambda chance, name, _: f"{name} = [x for x in sys.argv if {_value(chance, 2)}]",
    lambda chance, name, _: (
        f"c = llama3_8b_pretrain_config()\nc.{chance.choice(('model', 'train.micro_batch_size', 'peft'))} = {name}"
    ),
    lambda chance, name, depth: f"with open({_value(chance, 0)}) as {name}:\n{_body(chance, depth)}",
    lambda chance, _, depth: f"try:\n{_body(chance, depth)}\nexcept Exception:\n{_body(chance, depth)}",
    lambda chance, name, _: f"{name} += {_value(chance, 0)}",
    lambda chance, name, _: f"{name} = [{name}, {name}, {chance.choice(NAMES)}]\n{name}.append({name})",
    lambda chance, name, _: f"{name}[{chance.choice(WORDS)}] = {name}\n{chance.choice(NAMES)} = vars({name})",
    lambda _, name, __: f"del {name}",
    lambda chance, name, depth: f"match {name}:\n    case 1:\n{_body(chance, depth, ' ' * 8)}",
    lambda chance, name, _: f"from {chance.choice(('run', 'train', '.', '..x'))} import {name}",
)


def _value(chance: Random, depth: int) -> str:
    kind = chance.randrange(13) if depth < 3 else chance.randrange(4)
    inner = lambda: _value(chance, depth + 1)  # noqa: E731 - drawn in the order in which they stand
    if kind < 4:
        return chance.choice(
            (chance.choice(NUMBERS), chance.choice(WORDS), repr(chance.choice(MODELS)), chance.choice(NAMES))
        )
    if kind < 8:
        given = [inner() for _ in range(chance.randint(0, 2))]
        given += [f"{each}={inner()}" for each in chance.sample(KEYWORDS, chance.randint(0, 4))]
        given += [f"**{inner()}"] if chance.random() < 0.1 else []
        return f"{chance.choice(CALLS)}({', '.join(given)})" + chance.choice(("", "", "", ".train()", "[0]"))
    operator = chance.choice(("+", "*", "**", "//", "%", "<", "and", "in", "|", "@"))
    forms: tuple[Callable[[], str], ...] = (
        lambda: f"[{inner()}, {inner()}]",
        lambda: "{" + f"{inner()}: {inner()}" + "}",
        lambda: f"({inner()} {operator} {inner()})",
        lambda: f"({inner()} if {inner()} else {inner()})",
        lambda: "f'{" + chance.choice(NAMES) + "}" + "x" * chance.choice((0, 3, 5000)) + "'",
    )
    return forms[kind - 8]()


def _notebook(chance: Random, text: str) -> str:
    """The text in cells, with outputs that are never read."""
    lines = text.split("\n")
    cells: list[object] = []
    while lines:
        taken, lines = lines[: (size := chance.randint(1, 12))], lines[size:]
        source: object = [f"{line}\n" for line in taken] if chance.random() < 0.8 else "\n".join(taken)
        output = {"output_type": "stream", "text": [JOB] * chance.choice((0, 1, 50)), "data": {"image/png": "A" * 999}}
        kind = chance.choice(("code", "code", "code", "markdown", "raw", 7))
        cells.append({"cell_type": kind, "source": source, "outputs": [output], "metadata": {}})
    chance.shuffle(cells) if chance.random() < 0.1 else None
    if chance.random() < 0.1:
        cells.append(chance.choice((None, [], {"cell_type": "code", "source": {"a": [[]]}}, "cells")))
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


def _broken(chance: Random, data: bytes) -> bytes:
    """The bytes with some of them gone, twice, or another."""
    for _ in range(chance.randint(1, 6)):
        at, size = chance.randint(0, len(data)), chance.choice((1, 1, 2, 20, 400))
        kind = chance.randrange(3)
        piece = chance.randbytes(size) if kind == 0 else data[at : at + size] * 2 if kind == 1 else b""
        data = data[:at] + piece + data[at + size :]
    return data
