"""Inputs of every kind in any size: what a file may repeat, and the command that reads it.

Each kind makes files, by name, of a count and a word that sets them apart from those of other runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

Files = Mapping[str, str]

HEAD = "memcheck: 1\nname: {name}\nmodel: {model}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8}}\n"
SETTINGS = "framework: pytorch, micro_batch_size: 1, sequence_length: 128"
PASSES = HEAD + f"training: {{{{{SETTINGS}}}}}\n"
FAILS = (
    "memcheck: 1\nname: {name}\nmodel: llama-3.1-8b\nhardware: {{gpu: h100-80gb, gpus_per_node: 1}}\n"
    "training: {{framework: torchtitan, micro_batch_size: 1, sequence_length: 4096, activation_checkpointing: full}}\n"
)
SOURCED = "memcheck: 1\nname: {name}\nsource: {{{kind}: ./{file}}}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8}}\n"
LAUNCH = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 128 --num-attention-heads 4 "
    "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000"
)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}


def plan(name: str, model: str = "gpt2", **more: str) -> str:
    """A plan that passes, with more keys at its end."""
    return PASSES.format(name=name, model=model) + "".join(f"{key}: {value}\n" for key, value in more.items())


def training(name: str, more: str) -> str:
    """A plan with more keys in its training section, in flow style."""
    return HEAD.format(name=name, model="gpt2") + f"training: {{{SETTINGS}, {more}}}\n"


def each(count: int, text: str, between: str = "") -> str:
    """A text for every number below a count, with ``{0}`` for the number."""
    return between.join(text.replace("{0}", str(number)) for number in range(count))


def documents(text: Callable[[str], str]) -> Callable[[int, str], Files]:
    """Plans of one file."""
    return lambda count, salt: {"p.yaml": "---\n".join(text(f"{salt}-{number}") for number in range(count))}


def files(text: Callable[[str], str], more: Files = {}) -> Callable[[int, str], Files]:  # noqa: B006
    """Plans in files of their own, in folders of fifty."""
    return lambda count, salt: {
        **{f"d{number // 50}/p{number}.yaml": text(f"{salt}-{number}") for number in range(count)},
        **more,
    }


def sourced(kind: str, name: str, text: Callable[[int, str], str]) -> Callable[[int, str], Files]:
    """A plan over a config of one framework."""
    return lambda count, salt: {
        "p.yaml": SOURCED.format(name=salt, kind=kind, file=name),
        name: f"{text(count, salt)}",
    }


def script(lines: Callable[[int], str], kind: str = "megatron", job: str = LAUNCH) -> Callable[[int, str], Files]:
    """A plan over a launch script that has lines before its command."""
    return sourced(kind, "run.sh", lambda count, salt: f"# {salt}\n{lines(count)}{job}\n")


def one_file(text: Callable[[int, str], str], name: str = "p.yaml") -> Callable[[int, str], Files]:
    """One plan."""
    return lambda count, salt: {name: text(count, salt)}


def accepted(count: int, salt: str) -> str:
    """A baseline's text."""
    found = [
        {"path": f"d{number}/p{number}.yaml", "plan": f"{salt}-{number}", "code": "MEM101", "utilization": 1.5}
        for number in range(count)
    ]
    return json.dumps({"baseline": 1, "memcheck": "0", "findings": found})


Kind = tuple[int, Callable[[int, str], Files], list[str]]
CHECK = ["check", "--no-cache", "--jobs", "1", "p.yaml"]
TREE = ["check", "--no-cache", "--jobs", "1", "."]
GPU = ["--gpu", "h100-80gb", "--gpus-per-node", "8"]
