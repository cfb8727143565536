"""The serving engine boots, and cannot hold the requests that the plan wants to serve at once.

## What it does

Compares the blocks of `inference.demand` with those of the KV cache, in the engine's own pages and groups of layers.
Also compares the length of the demand with the longest request that the engine takes.

## Why it matters

An engine that boots needs room for one request alone. The others wait, or are preempted and computed again.

## Example

    inference: {engine: vllm, demand: {sequences: 64, length: 32768}}    # and room for 9 of them

## How to fix

Take a smaller demand, a KV cache in `fp8`, more GPUs with `inference.tensor`, or a second server for the rest.
For longer requests raise `inference.max_model_len`.

## Options

Without `inference.demand` nothing is checked.

## Source

vLLM `v1/core/kv_cache_utils.py` (`get_max_concurrency_for_kv_cache_config`).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.types import MEASURED, Rule, RuleContext, stated
from memcheck.rules.when import overcrowded


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding: the requests are too long, or too many."""
    answer = context.estimate.engine if context.estimate is not None else None
    if answer is None or answer.pool is None or answer.settings.demand is None or answer.demand_held:
        return
    pool, (sequences, length) = answer.pool, answer.settings.demand
    if length > pool.length:
        yield RULE.finding(
            context,
            f"requests of {length:,} tokens are longer than the {pool.length:,} that the engine takes",
            "/inference/demand/length",
            help=f"write `max_model_len: {length}`, or a shorter demand",
            related=(("the limit", "/inference/max_model_len"),),
        )
        return
    held = (pool.blocks - 1) * sequences // max(answer.demand_pages, 1)
    yield RULE.finding(
        context,
        f"{sequences:,} requests of {length:,} tokens need {answer.demand_pages:,} blocks of KV cache, and the engine"
        f" has {pool.blocks - 1:,} for them: {held:,} are held at once, the others wait",
        stated(context.document, "/inference/demand/sequences", "/inference/demand"),
        help=f"write `sequences: {held}`, keep the KV cache in fp8, or raise `inference.tensor`",
        related=(("the share", "/inference/gpu_memory_utilization"), ("the GPU", "/hardware/gpu")),
    )


RULE = Rule(
    code="MEM703",
    name="demand-not-held",
    severity="warning",
    summary="The serving engine cannot hold the requests that the plan wants to serve at once.",
    doc=__doc__,
    check=check,
    when=overcrowded,
    precision=MEASURED,
    needs_estimate=True,
)
