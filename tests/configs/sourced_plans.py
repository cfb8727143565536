"""Plans whose values come from configs, with the configs: one of each format, and none of them fits."""

from __future__ import annotations

from pathlib import Path

from memcheck.configs.documents import load_plans
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import Resolved, resolve
from memcheck.plan.places import Document
from memcheck.plan.read import read_plan

DEEPSPEED = """\
{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 8,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 1,
    "reduce_bucket_size": 5e7
  },
  "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
  "steps_per_print": 10
}
"""
TITAN = """\
# our job
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 4        # of each rank
global_batch_size = 64
seq_len = 8192
dataset = "c4"

[parallelism]
data_parallel_shard_degree = -1   # all of them

[activation_checkpoint]
mode = "none"
"""
MEGATRON = """\
#!/bin/bash
TP=2
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096   # a comment: --num-layers 99
    --num-attention-heads 32
    --seq-length=4096 --max-position-embeddings 4096
    --vocab-size 50304
)
torchrun --nproc-per-node 8 pretrain_gpt.py ${MODEL_ARGS[@]} \\
    --tensor-model-parallel-size ${TP} \\
    --micro-batch-size 4 --global-batch-size 32 \\
    --bf16 --use-distributed-optimizer --no-bias-gelu-fusion \\
    --cp-comm-type p2p
"""
ACCELERATE = """\
# how we launch
distributed_type: FSDP
mixed_precision: bf16   # the cards have it
num_machines: 1
num_processes: 8
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
parallelism_config:
  parallelism_config_tp_size: 1
"""
LLAMA = "model: llama-3.1-8b   # the base\n"
PLANS = {
    "deepspeed": (
        "ds.json",
        DEEPSPEED,
        LLAMA + "hardware: {gpu: rtx-4090, gpus_per_node: 8}\n"
        "training:\n  sequence_length: 4096  # long\n  activation_checkpointing: full\n",
    ),
    "torchtitan": ("job.toml", TITAN, "hardware: {gpu: a100-40gb, gpus_per_node: 8}\n"),
    "megatron": ("run.sh", MEGATRON, "hardware: {gpu: a100-40gb}\n"),
    "accelerate": (
        "fsdp.yaml",
        ACCELERATE,
        LLAMA + "hardware: {gpu: rtx-4090}\ntraining: {sequence_length: 8192, micro_batch_size: 4}\n",
    ),
}
"""By format: the config's name and text, and the plan that takes its values from it, which does not fit."""


def write(format: str, end: str = "\n") -> tuple[Path, Path]:
    """The plan and its config as files."""
    name, text, rest = PLANS[format]
    plan, config = Path("plan.yaml"), Path(name)
    config.write_bytes(text.replace("\n", end).encode())
    plan.write_bytes(f"memcheck: 1\nsource: {{{format}: ./{name}}}\n{rest}".replace("\n", end).encode())
    return plan, config


def load(texts: dict[str, bytes] | None = None, data: bytes | None = None) -> Document:
    """The plan with what its config says."""
    (document,) = load_plans("plan.yaml", Path("plan.yaml").read_bytes() if data is None else data, texts or {})
    return document


def resolved(document: Document) -> Resolved | None:
    """The plan's job; None if there is none."""
    plan, _ = read_plan(document)
    try:
        return None if plan is None else resolve(plan, FRAMEWORKS, base_dir=".")
    except ResolutionError:
        return None
