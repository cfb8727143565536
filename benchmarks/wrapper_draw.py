"""Draws files that wrap a launch, and files of a team's own, which nobody wrote: manifests, scripts, YAML."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

ARGUMENTS = (
    "--model_name_or_path Qwen/Qwen2.5-0.5B",
    "--per_device_train_batch_size 1",
    "--per_device_train_batch_size $B",
    "--max_length 1024",
    "--bf16",
    "--config configs/a.yaml",
    "--gradient_accumulation_steps $((128 / $B))",
    "--lora_r ${R:-16}",
    "--output_dir 'a b'",
    "2>&1 | tee log",
    "&& echo done",
    "--x \\",
    "$@",
    "{{ .Values.args }}",
)
STARTS = (
    "torchrun --nproc_per_node 2 -m trl.scripts.sft",
    "torchrun --nnodes $N --nproc_per_node=$G train.py",
    "accelerate launch --num_processes 2 train.py",
    "python -m src.train",
    "bash scripts/train.sh",
    "ray job submit --address http://a:1 -- python train.py",
    "srun --het-group=1 --container-image=a/b python train.py",
    "tune run --nproc_per_node 2 lora_finetune_distributed --config llama3/8B_lora",
    "docker run --gpus all a/b torchrun train.py",
    "echo python train.py",
    "vllm serve Qwen/Qwen2.5-0.5B --max-model-len 4096",
)
COUNTS: tuple[Any, ...] = (1, 2, 8, 0, -1, 10**12, "4", "all", None, "$G", 1.5, True, [8], {"a": 1}, "9" * 50)
GPUS: tuple[Any, ...] = (
    "H100:8",
    "A100-80GB",
    {"H100": 8},
    {"name": "L4", "count": 2},
    "24GB",
    ["T4:1"],
    "x" * 400,
    None,
    3,
)
USUAL = (
    *(
        "model_name",
        "model.name",
        "base_model",
        "batch_size",
        "per_device_train_batch_size",
        "max_seq_length",
        "seq_len",
    ),
    *(
        "lora.r",
        "lora_r",
        "lora.target_modules",
        "load_in_4bit",
        "bf16",
        "dtype",
        "precision",
        "gradient_checkpointing",
    ),
    *(
        "optim",
        "optimizer.name",
        "packing",
        "method",
        "algorithm",
        "gpus",
        "gpu",
        "eval.batch_size",
        "deepspeed",
        "fsdp",
    ),
)
VALUES: tuple[Any, ...] = (
    *("Qwen/Qwen2.5-7B", "a/b", "", 1, 2, 16, 2048, -5, 10**15, 0.5, True, False, None, "qlora", "dpo", "grpo", "4bit"),
    *("bf16", "fp16", "adamw_8bit", ["q_proj"], {"a": 1}, "all-linear", "\x1b[31m", "$X", "ds.json", "h100-80gb"),
)


def _command(chance: Random) -> str:
    return " ".join([chance.choice(STARTS), *chance.sample(ARGUMENTS, chance.randint(0, 7))])


def _script(chance: Random) -> str:
    """Lines of a shell."""
    lines = [chance.choice(("B=2", "export G=8", "if [ $A ]; then", "fi", "cd a", "pip install x", _command(chance)))]
    return "\n".join([*lines * chance.randint(0, 3), _command(chance)])


def _kubernetes(chance: Random) -> dict[str, Any]:
    command: Any = _command(chance)
    container = {
        "image": chance.choice(("a/b:1", "vllm/vllm-openai:v0.10.1", 3)),
        "command": chance.choice((["bash", "-c", command], command.split(), command, [command], [1, None])),
        "args": chance.choice((command.split(), [_script(chance)], None, "x")),
        "env": chance.choice(
            ([{"name": "G", "value": "2"}, {"name": "B", "value": "$(B)$(B)"}], {"G": 1}, [None], "x")
        ),
        "resources": {
            "limits": {chance.choice(("nvidia.com/gpu", "nvidia.com/a100", "amd.com/gpu")): chance.choice(COUNTS)}
        },
    }
    pod: dict[str, Any] = {"containers": [container], "nodeSelector": {"nvidia.com/gpu.product": chance.choice(GPUS)}}
    kind = chance.choice(("Job", "PyTorchJob", "JobSet", "RayJob", "Job x", "LeaderWorkerSet"))
    spec: dict[str, Any] = {
        "template": {"spec": pod},
        "pytorchReplicaSpecs": {"Worker": {"replicas": chance.choice(COUNTS), "template": {"spec": pod}}},
        "replicatedJobs": [
            {"replicas": chance.choice(COUNTS), "template": {"spec": {"parallelism": chance.choice(COUNTS)}}}
        ],
        "workerGroupSpecs": [{"replicas": chance.choice(COUNTS), "template": {"spec": pod}}],
        "entrypoint": command,
        "leaderWorkerTemplate": chance.choice(({"size": chance.choice(COUNTS)}, [], 1)),
    }
    kept = dict(chance.sample(sorted(spec.items(), key=lambda item: item[0]), chance.randint(1, len(spec))))
    return {"apiVersion": "v1", "kind": kind, "spec": kept}


def _clouds(chance: Random) -> dict[str, Any]:
    command = _script(chance)
    step = {"run": command, "env": {"B": chance.choice(COUNTS)}}
    return chance.choice(
        (
            {"resources": {"accelerators": chance.choice(GPUS)}, "num_nodes": chance.choice(COUNTS), "run": command},
            {"type": "task", "commands": command.split("\n"), "resources": {"gpu": chance.choice(GPUS)}},
            {
                "services": {
                    "a": {"image": "b", "command": command, "deploy": {"devices": [{"count": chance.choice(COUNTS)}]}}
                }
            },
            {"on": "push", "jobs": {"a": {"runs-on": ["gpu", "a100-80gb", chance.choice(GPUS)], "steps": [step]}}},
            {"stages": ["a"], "b": {"stage": "a", "script": command.split("\n")}},
        )
    )


def _make(chance: Random) -> str:
    lines = ["PYTHON ?= python", "B := 2", "G = $(B)$(B)", "ifdef A", "R += 3", "endif", "", "include x.mk", "define z"]
    recipe = [
        f"\t{chance.choice(('', '@', '-'))}{_command(chance).replace('$', '$(')}" for _ in range(chance.randint(0, 4))
    ]
    return "\n".join([*chance.sample(lines, chance.randint(0, len(lines))), "train: x", *recipe]) + "\n"


def _docker(chance: Random) -> str:
    command = _command(chance)
    form = chance.choice((command, json.dumps(command.split()), json.dumps(["sh", "-c", command]), "[1, {", "[]"))
    return f"FROM a/b:1\nENV B=2 G='x y'\nARG N\n{chance.choice(('RUN', 'CMD', 'ENTRYPOINT'))} {form}\nCMD {form}\n"


def _slurm(chance: Random) -> str:
    asks = (
        "--nodes=2",
        "--gres=gpu:h100-80gb:8",
        "--gres=gpu:x:y",
        "-G 8",
        "hetjob",
        "-C v100-32g",
        "--array=0-9",
        "-N2",
    )
    lines = [f"#SBATCH {each}" for each in chance.sample(asks, chance.randint(0, len(asks)))]
    return "\n".join(["#!/bin/bash", *lines, _script(chance)]) + "\n"


def _own(chance: Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in chance.sample(USUAL, chance.randint(1, 14)):
        *sections, name = key.split(".")
        table = found
        for each in sections:
            if not isinstance(table.get(each), dict):
                table[each] = {}
            table = table[each]
        table[name] = chance.choice(VALUES)
    return found


def draw_wrapper(chance: Random) -> tuple[str, str, tuple[str, ...]]:
    """A file's name, its text, and the options that it is checked with."""
    kinds: tuple[tuple[str, Callable[[Random], Any]], ...] = (
        ("job.yaml", _kubernetes),
        ("task.yaml", _clouds),
        ("Makefile", _make),
        ("justfile", _make),
        ("Dockerfile", _docker),
        ("job.slurm", _slurm),
        ("own.yaml", _own),
        ("own.json", _own),
    )
    name, draw = chance.choice(kinds)
    found = draw(chance)
    text = found if isinstance(found, str) else json.dumps(found) if name.endswith("json") else yaml.safe_dump(found)
    options = ("--from", "keys") if name.startswith("own") and chance.random() < 0.7 else ()
    return name, text, (*options, "--gpu", chance.choice(("h100-80gb", "t4")))
