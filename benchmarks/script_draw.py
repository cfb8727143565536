"""Draws Python files and notebooks that nobody wrote: calls of trainers among code of every kind, and broken bytes.

A file is a function of its seed and number alone. None of them is ever run.
"""

from __future__ import annotations

import json
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
)  # fmt: skip
HEAD = (
    "import os, sys, json, yaml, torch, argparse\nfrom pathlib import Path\nfrom transformers import *\n"
    "from transformers import AutoModelForCausalLM, BitsAndBytesConfig, HfArgumentParser, Trainer, TrainingArguments\n"
    "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\nfrom accelerate import Accelerator\n"
    "from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer\nfrom unsloth import FastLanguageModel\n"
)
JOB = (
    "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
    "args = SFTConfig(per_device_train_batch_size=2, max_length=512)\nSFTTrainer(model, args=args).train()\n"
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
    stated = ["--gpu", chance.choice(("a100-80gb", "t4", "no-such-gpu", "mi300x"))]
    if chance.random() < 0.4:
        stated += ["--model", "llama-3.1-8b", "--sequence-length", "512", "--micro-batch-size", "1"]
    if chance.random() < 0.2:
        stated += ["--define", f"{chance.choice(NAMES)}={chance.choice(NUMBERS)}"]
    files = {name: data}
    if chance.random() < 0.2:
        files["run.yaml"] = chance.choice((b"model: gpt2\nbatch: 4\n", b"a: &a [*a, *a]\n", b"[" * 500, b"\xff\xfe"))
    return Input("script", files, {}, (), (name, *stated))


def _text(chance: Random) -> str:
    lines = [HEAD] if chance.random() < 0.9 else []
    lines += [_statement(chance, 0) for _ in range(chance.choice((1, 3, 8, 20, 60)))]
    if chance.random() < 0.7:
        lines.insert(chance.randint(0, len(lines)), JOB)
    lines += [_statement(chance, 0) for _ in range(chance.randint(0, 4))]
    if chance.random() < 0.15:
        lines.insert(chance.randint(0, len(lines)), chance.choice(MAGICS))
    if chance.random() < 0.1:
        lines.insert(chance.randint(0, len(lines)), chance.choice(TOKENS))
    return "\n".join(lines) + "\n"


def _statement(chance: Random, depth: int) -> str:
    name, value = chance.choice(NAMES), _value(chance, 0)
    if depth > 3:
        return f"{name} = {value}"
    kind = chance.randrange(16)
    body = "\n".join(f"    {line}" for line in _statement(chance, depth + 1).split("\n"))
    return (
        f"{name} = {value}",
        f"{name}.{chance.choice(KEYWORDS)} = {value}",
        f"{name}[{_value(chance, 1)}] = {value}",
        f"{name}, {chance.choice(NAMES)} = {value}, {_value(chance, 1)}",
        f"{value}",
        f"if {_value(chance, 1)}:\n{body}\nelse:\n{body}",
        f"for {name} in {value}:\n{body}",
        f"while {_value(chance, 1)}:\n{body}",
        f"def f({name}={_value(chance, 1)}, *a, **k):\n{body}\n    return f({name}) or {value}",
        f"class C(TrainingArguments):\n    {name}: int = {_value(chance, 1)}\n    def __init__(self):\n        C()",
        f"with open({value}) as {name}:\n{body}",
        f"try:\n{body}\nexcept Exception:\n{body}",
        f"{name} += {value}",
        f"del {name}",
        f"match {name}:\n    case 1:\n{body.replace(chr(10), chr(10) + '    ').replace('    ', '        ', 1)}",
        f"from {chance.choice(('run', 'train', '.', '..x', 'run.yaml'.partition('.')[0]))} import {name}",
    )[kind]


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
    return (
        f"[{inner()}, {inner()}]",
        "{" + f"{inner()}: {inner()}" + "}",
        f"({inner()} {chance.choice(('+', '*', '**', '//', '%', '<', 'and', 'in', '|', '@'))} {inner()})",
        f"({inner()} if {inner()} else {inner()})",
        "f'{" + chance.choice(NAMES) + "}" + "x" * chance.choice((0, 3, 5000)) + "'",
    )[kind - 8]


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
