"""The serving engine copies key/value heads, so that more GPUs hold no more tokens.

## What it does

Compares `inference.tensor` with the number of key/value heads. With more ranks than heads, the engine copies each head
to several ranks. A degree that neither divides the heads nor is divided by them is refused by the engine (MEM701).

## Why it matters

Each rank holds at least one whole head. From there on a higher degree divides the weights, and not the KV cache.

## Example

    model: qwen2.5-7b                 # 4 key/value heads
    inference: {engine: vllm, tensor: 8}

## How to fix

Take a tensor degree up to the number of key/value heads, and run several servers on the remaining GPUs.

## Options

None.

## Source

vLLM `config/model.py` (`get_num_kv_heads`: at least one per rank).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import InferenceJob
from memcheck.plan.finding import Finding
from memcheck.rules.layout import kv_head_counts
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import serves_divided


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for the smallest number of key/value heads below the tensor degree."""
    job = context.job
    settings = job.engine if isinstance(job, InferenceJob) else None
    heads = min(kv_head_counts(context), default=0)
    if settings is None or not 0 < heads < settings.tensor or settings.tensor % heads:
        return
    yield RULE.finding(
        context,
        f"{heads} key/value heads over {settings.tensor} tensor ranks: each is copied to {settings.tensor // heads} "
        "ranks, and the KV cache holds no more tokens than with fewer ranks",
        "/inference/tensor",
        help=f"write `tensor: {heads}`, and run another server on the other GPUs",
        related=(("the model", "/model"),),
    )


RULE = Rule(
    code="MEM704",
    name="kv-heads-replicated",
    severity="warning",
    summary="The serving engine copies key/value heads to several ranks.",
    doc=__doc__,
    check=check,
    when=serves_divided,
)
