"""Plans to start from, and the findings of a changed one."""

from __future__ import annotations

from memcheck.plan.finding import Finding
from memcheck.plan.read import load_documents, read_plan
from memcheck.plan.types import Plan

SMALL = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb}
training:
  micro_batch_size: 1
  sequence_length: 4096
"""

FULL = """\
memcheck: 1
name: llama-3.1-8b-docs-sft
description: Fine-tune on internal docs, 8k context.
model: {name: llama-3.1-8b, overrides: {num_hidden_layers: 12}}
hardware:
  gpu: {name: mi455x, memory_gib: 431.2, bf16_tflops: 10000, fp16_tflops: 10000, fp8_tflops: 20000, hbm_gbs: 19600, nvlink_gbs: 3600}
  gpus_per_node: 8
  nodes: 1
  host_memory_gib: 1024
parallelism:
  tensor: 1
  sequence: false
  context: 1
  pipeline: 1
  pipeline_schedule: 1f1b
  virtual_stages: 1
  expert: 1
  expert_tensor: 1
  data: auto
  zero_stage: 3
  shard_group: auto
  reshard_after_forward: true
  gradient_sync: every
  gradient_as_bucket_view: false
training:
  framework: huggingface
  framework_version: "5.23"
  method: lora
  lora: {rank: 16, target_modules: [q_proj, v_proj], dtype: fp32}
  freeze: [embed, "layers:0-24"]
  micro_batch_size: 1
  sequence_length: 8192
  gradient_accumulation_steps: 1
  precision: {recipe: bf16-mixed, params: bf16, gradients: fp32, master: none, optimizer_states: fp32, reduce: fp32}
  optimizer: {name: adamw, implementation: fused, offload: none}
  activation_checkpointing: {mode: full, reentrant: false, every_n_layers: 2, offload: cpu}
  attention: sdpa
  loss: {kind: chunked, chunks: 8, upcast: true, keep_logits: false}
  clip_grad_norm: true
  expert_imbalance: 1.0
  compile: false
  expandable_segments: auto
  offload: {parameters: cpu}
  options: {reduce_bucket_size: 50000000}
policy:
  fail_above: 90%
  warn_above: 0.85
  waste_below: 40%
  overhead: 10%
"""

SERVING = """\
memcheck: 1
model: {rough: {parameters: 700M, layers: 32, hidden_size: 4096, activation_multiplier: 10, vocab_size: 32000}}
hardware: {gpu: h100-80gb, gpus_per_node: 4}
parallelism: {tensor: 4, data: 1, shard_group: 1}
inference: {batch_size: 8, context_length: 32768, weights: bf16, kv_cache: fp8}
"""

ARCHITECTURE = """\
memcheck: 1
model:
  architecture: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, rms_norm_eps: 1.0e-5, rope_scaling: null}
hardware: {gpu: h100-80gb}
training: {micro_batch_size: 1, sequence_length: 4096, global_batch_size: 64, expandable_segments: true}
"""

VALID = (SMALL, FULL, SERVING, ARCHITECTURE)


def read(text: str) -> tuple[Plan | None, list[Finding]]:
    """The plan and the findings of a file of one document."""
    (document,) = load_documents("plan.yaml", text.encode())
    return read_plan(document)


def findings(text: str) -> list[Finding]:
    """What is wrong with a file of one document."""
    return read(text)[1]


def changed(old: str, new: str, text: str = SMALL) -> str:
    """A plan with one passage replaced."""
    assert text.count(old) == 1
    return text.replace(old, new)


def one(text: str) -> Finding:
    """The only finding of a file."""
    (finding,) = findings(text)
    return finding


def fixed(text: str) -> str:
    """The file after every edit that the findings offer."""
    lines = text.split("\n")
    edits = sorted(
        (edit for finding in findings(text) for edit in finding.fix), key=lambda edit: edit.span, reverse=True
    )
    for span, new in edits:
        assert span.line == span.end_line
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.column - 1] + new + line[span.end_column - 1 :]
    return "\n".join(lines)


def marked(text: str, finding: Finding) -> str:
    """The text that a finding of one line points at."""
    span = finding.location.span
    assert span.line == span.end_line
    return text.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]
