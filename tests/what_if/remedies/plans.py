"""Over-budget plans that remedies are searched for."""

from __future__ import annotations

from memcheck.judge import Gate, check_document
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents
from memcheck.rules.result import PlanResult
from memcheck.what_if import with_remedies

REPLICATED = """\
memcheck: 1
model: llama-3.1-8b
hardware:
  gpu: h100-80gb
  gpus_per_node: 8
training:
  framework: huggingface
  micro_batch_size: 1
  sequence_length: 4096
  precision: bf16-mixed
  optimizer: adamw
  activation_checkpointing: full
"""
LARGE_BATCH = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3, gradient_sync: every}
training:
  framework: huggingface
  micro_batch_size: 4
  sequence_length: 8192
  global_batch_size: 256
  precision: bf16-mixed
  activation_checkpointing: full
"""
MEGATRON = """\
memcheck: 1
model: llama-3.1-70b
hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 4}
parallelism: {tensor: 4, pipeline: 4}
training: {framework: megatron, micro_batch_size: 2, sequence_length: 8192, gradient_accumulation_steps: 16, precision: bf16-mixed}
"""
SINGLE = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: rtx-4090}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 2048, precision: bf16-pure}
"""
SERVING = """\
memcheck: 1
model: llama-3.1-70b
hardware: {gpu: h100-80gb, gpus_per_node: 4}
parallelism: {tensor: 2}
inference: {batch_size: 8, context_length: 32768}
"""
BASE = {
    "replicated": REPLICATED,
    "large-batch": LARGE_BATCH,
    "megatron": MEGATRON,
    "single": SINGLE,
    "serving": SERVING,
}


def read(text: str) -> Document:
    """The document of a plan."""
    (document,) = load_documents("plan.yaml", text.encode())
    return document


def judge(text: str, **changes: object) -> PlanResult:
    """The verdict on a plan after some changes, without remedies."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return check_document(read(text), Gate(changes=dotted))


def over_budget(text: str) -> Finding:
    """The finding that carries the remedies of a plan that does not fit."""
    result = check_document(read(text), Gate(remedies=with_remedies))
    (finding,) = [f for f in result.findings if f.code in {"MEM101", "MEM102"}]
    return finding
