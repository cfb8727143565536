"""The serving engine does not boot with this plan.

## What it does

Follows the arithmetic of the engine's own planner: its share of the GPU, less weights, profile run and what lies
outside of torch. From the rest it makes blocks for the KV cache. The finding has the engine's words with its numbers.
It also reports what the engine refuses before any question of memory: heads, lengths, pipelines, block sizes.

## Why it matters

The engine says the same after it has loaded the weights, minutes later and on the GPU. A replica that cannot boot
restarts for ever.

## Example

    model: qwen3-32b
    hardware: {gpu: h100-80gb}
    inference: {engine: vllm, version: "0.11.0", max_model_len: 32000}   # a request needs 7.81 GiB, 4.4 are left

## How to fix

Lower `max_model_len`, `max_num_seqs` or `max_num_batched_tokens`, raise `gpu_memory_utilization`, keep the cache in
fp8, or divide the model over more GPUs with `tensor`.

## Options

`kv_cache_bytes` replaces the share by a size from a log.

## Source

vLLM's `determine_available_memory`, `get_kv_cache_configs` and `request_memory`, by version.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import gib
from memcheck.rules.types import MEASURED, Rule, RuleContext, stated
from memcheck.rules.when import engine_fails


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding if the engine does not boot at any point of the terms' intervals."""
    answer = context.estimate.engine if context.estimate is not None else None
    if answer is None or answer.answer != "does_not_boot" or answer.refusal is None:
        return
    settings, refusal = answer.settings, answer.refusal
    room = ""
    if refusal.kind in ("too-long", "none", "auto"):
        low, high = answer.pool_interval_bytes
        if high > 0:
            room = f"; at most {gib(high)} are left for the KV cache, at least {gib(max(0, low))}"
        else:
            room = f"; nothing is left for the KV cache: {gib(-high)} to {gib(-low)} are missing before it"
        short = answer.request_bytes - high
        if short > 0 and answer.settings.length:
            room += f"; for one request at least {gib(short)} are missing"
    hints = []
    if answer.longest and refusal.kind == "too-long":
        hints.append(f"`max_model_len: {answer.longest}`")
    if answer.share_needed is not None and refusal.kind in ("too-long", "none", "auto"):
        hints.append(f"`gpu_memory_utilization: {answer.share_needed:g}`")
    known = "".join(f"; computed as {version}" for version, _ in answer.enclosing[-1:])
    yield RULE.finding(
        context,
        f"{settings.name} {settings.version} does not boot: {refusal.words}{room}{known}",
        stated(context.document, refusal.pointer, "/inference/max_model_len", "/inference/engine", "/hardware/gpu"),
        help=f"by the expected figures it boots with {' or '.join(hints)}" if hints else "change the key named here",
    )


RULE = Rule(
    code="MEM701",
    name="engine-does-not-boot",
    severity="error",
    summary="The serving engine does not boot with this plan.",
    doc=__doc__,
    check=check,
    when=engine_fails,
    precision=MEASURED,
    needs_estimate=True,
)
