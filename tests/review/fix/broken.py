"""Plans with mistakes that have one right correction, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable

PLAN = """\
# A plan: größer als nötig, 模型.
memcheck: 1
name: generated
model: llama-3.2-1b
hardware: &hw
  gpu: {name: h100-80gb, memory_gib: 75.0}   # measured
  gpus_per_node: 8
  host_memory_gib: 1024
parallelism:
  zero_stage: 3

  sequence: false
  # memcheck: ignore[MEM209] until the racks are rewired
  tensor: 1
training:
  framework: 'huggingface'
  method: full
  freeze: [embed]
  micro_batch_size: &one 1
  gradient_accumulation_steps: *one
  sequence_length: 2048  # tokens
  precision: bf16-mixed
  activation_checkpointing: full
  attention: sdpa
  compile: false
  clip_grad_norm: true
policy: {fail_above: 95%, warn_above: 0.9}
"""

Mistake = tuple[str, str]

SPELLING: tuple[Mistake, ...] = (
    ("gpus_per_node:", "gpus_per_nodes:"),
    ("zero_stage:", "zero-stage:"),
    ("micro_batch_size:", "micro_batchsize:"),
    ("sequence_length:", "sequence_lenght:"),
    ("activation_checkpointing:", "activation_checkpoint:"),
    ("parallelism:", "paralellism:"),
    ("training:", "trainng:"),
    ("precision:", "precison:"),
    ("fail_above:", "fail_abov:"),
    ("host_memory_gib:", "host_memory_gb:"),
    ("gpus_per_node:", "nproc_per_node:"),
    ("  tensor: 1", "  tensor_model_parallel_size: 1"),
    ("micro_batch_size:", "per_device_train_batch_size:"),
    ("sequence_length:", "max_seq_length:"),
    ("activation_checkpointing: full", "gradient_checkpointing: true  # slow"),
    ("attention: sdpa", "attn_implementation: 'sdpa'"),
    ("precision: bf16-mixed", "mixed_precision: bf16"),
    ("compile: false", "torch_compile: False"),
)
"""Keys: slips of the finger, other spellings, and what other tools call them."""
VALUES: tuple[Mistake, ...] = (
    ("gpus_per_node: 8", 'gpus_per_node: "8"'),
    ("&one 1", "&one '1'"),
    ("length: 2048", "length: 2.048e3"),
    ("length: 2048", "length: '2048'"),
    ("stage: 3", "stage: '3'"),
    ("memory_gib: 75.0", "memory_gib: 75e0"),
    ("memory_gib: 75.0", "memory_gib: 75GiB"),
    ("host_memory_gib: 1024", "host_memory_gib: 1e3"),
    ("freeze: [embed]", "freeze: embed"),
    ("sequence: false", "sequence: off"),
    ("sequence: false", "sequence: 'false'"),
    ("compile: false", "compile: No"),
    ("clip_grad_norm: true", "clip_grad_norm: on"),
    ("precision: bf16-mixed", "precision: BF16_Mixed"),
    ("checkpointing: full", "checkpointing: Full"),
    ("attention: sdpa", "attention: SDPA"),
    ("fail_above: 95%", "fail_above: 95"),
    ("tensor: 1", "tensor: 1\n  pipeline: 1\n  virtual_stages: 1"),
    ("{fail_above: 95%,", "{overhead: modeled, fail_above: 95%,"),
    ("compile: false", "optimizer: {name: adamw, offload: none}"),
    ("tensor: 1", "tensor: 1  # memcheck: ignore[MEM202] left over"),
    ("tensor: 1", "tensor: 1  # memcheck: ignore[MEM208]"),
)
FORMS: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: text.replace("\n", "\r\n"),
    lambda text: "\ufeff" + text,
    lambda text: text.rstrip("\n"),
    lambda text: "\ufeff" + text.replace("\n", "\r\n").rstrip("\r\n"),
    lambda text: text + "---\n" + PLAN,
    lambda text: PLAN + "---\n" + text,
    lambda text: text.replace("  # tokens", "   # tokens, \U0001f4a5"),
)


def broken(seed: int) -> bytes:
    """One plan with one to five mistakes, in one of several forms of the same text."""
    chance = random.Random(seed)  # noqa: S311 - the same plans on every run
    text = PLAN
    for old, new in chance.sample(SPELLING, chance.randint(0, 2)) + chance.sample(VALUES, chance.randint(1, 3)):
        text = text.replace(old, new, 1)
    return chance.choice(FORMS)(text).encode()
