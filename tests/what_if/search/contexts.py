"""Plans to search around."""

from __future__ import annotations

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import load_documents, read_plan
from memcheck.rules.run import make_context
from memcheck.rules.types import RuleContext

SMALL = """\
memcheck: 1
model: llama-3.2-1b
hardware: {gpu: rtx-4090, gpus_per_node: 4}
training: {framework: pytorch, micro_batch_size: 2, sequence_length: 4096, gradient_accumulation_steps: 4}
"""
PIPELINED = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: a100-40gb, gpus_per_node: 4}
parallelism: {tensor: 4}
training: {framework: megatron, micro_batch_size: 4, sequence_length: 8192, gradient_accumulation_steps: 8}
"""
TITAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {zero_stage: 3}
training: {framework: torchtitan, micro_batch_size: 4, sequence_length: 8192, global_batch_size: 64}
"""
EXPERTS = """\
memcheck: 1
model: mixtral-8x7b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {expert: 2}
training: {framework: megatron, micro_batch_size: 1, sequence_length: 4096, gradient_accumulation_steps: 8}
"""
SERVING = """\
memcheck: 1
model: llama-3.1-70b
hardware: {gpu: h100-80gb, gpus_per_node: 4}
parallelism: {tensor: 2}
inference: {batch_size: 8, context_length: 32768}
"""
HOPELESS = """\
memcheck: 1
model: llama-3.1-405b
hardware: {gpu: rtx-4090, gpus_per_node: 2}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 2048, gradient_accumulation_steps: 8}
"""
TRAINING = {"small": SMALL, "pipelined": PIPELINED, "titan": TITAN, "experts": EXPERTS}


def context_of(text: str) -> RuleContext:
    """What rules and searches look at, with the estimate of the plan as written."""
    (document,) = load_documents("plan.yaml", text.encode())
    plan, findings = read_plan(document)
    assert plan is not None, findings
    resolved = resolve(plan, FRAMEWORKS, base_dir=".")
    context = make_context(plan, document, resolved, fail_above=0.9, warn_above=0.85)
    return context._replace(estimate=estimate(resolved.job, resolved.gpu, resolved.overhead))
