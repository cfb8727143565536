"""Whether the serving engine boots depends on a term that memcheck cannot compute.

## What it does

Asks the engine's planner at both ends of the intervals of the uncertain terms: the profile run, what lies outside of
torch, CUDA graphs. If the answers differ, the plan is uncertain. CUDA graphs that count within the share have no usable
formula, so that a plan that neither states nor disables them is always uncertain.

## Why it matters

A plan that boots with the expected figures may still end in "No available memory for the cache blocks". The finding
names the figure that settles it.

## Example

    inference: {engine: vllm, version: "0.33.0"}     # CUDA graphs are taken off the pool, and their size is unknown

## How to fix

State the figure of a log of the same version: `graphs_gib` or `kv_cache_bytes`. Or set `enforce_eager: true`, or lower
what the plan asks for until both ends boot.

## Options

`policy.uncertain`: `warn` (the default) or `fail`.

## Source

Public boots with their logs; the intervals are printed by `memcheck estimate --formulas`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import gib, listed
from memcheck.rules.types import MEASURED, Rule, RuleContext, stated
from memcheck.rules.when import boot_depends

FIGURES = {
    "graphs": "CUDA graphs",
    "profile": "the profile run",
    "outside": "what is outside of torch",
    "context": "context and communicators",
    "version": "the version",
}
"""The terms in words."""
SETTLE = {
    "graphs": 'state their size from a log ("Graph capturing finished ... took"): `--set inference.graphs_gib=N`; or '
    "set `enforce_eager: true`",
    "profile": 'state `kv_cache_bytes` from a log ("Available KV cache memory")',
    "outside": 'state `kv_cache_bytes` from a log ("Available KV cache memory")',
    "context": "lower `gpu_memory_utilization`",
    "version": "name a version that memcheck knows, or state `kv_cache_bytes`",
}
"""What settles each of them."""


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding if the engine boots at one end of the intervals and not at the other."""
    answer = context.estimate.engine if context.estimate is not None else None
    if answer is None or answer.answer != "depends" or not answer.depends_on:
        return
    settings = answer.settings
    terms = listed([FIGURES[name] for name in answer.depends_on], "and")
    need = f"one request of {_length(context):,} tokens needs {gib(answer.request_bytes)} of KV cache"
    low, high = answer.pool_interval_bytes
    unknown = any(t.high_bytes is None for terms_of in answer.ranks for t in terms_of)
    least = "at most" if unknown and "graphs" in answer.depends_on else f"{gib(max(0, low))} to"
    versions = "".join(f"; {version}: {each.replace('_', ' ')}" for version, each in answer.enclosing)
    message = f"whether {settings.name} {settings.version} boots depends on {terms}: {need}, "
    message += f"{least} {gib(max(0, high))} are left{versions}"
    room = answer.graphs_room_bytes
    if room is not None:
        message = f"{settings.name} {settings.version} boots unless CUDA graphs take more than {gib(room)}: "
        source = next(t.source for t in answer.ranks[0] if t.name == "graphs")
        message += f"{source}; `--set inference.graphs_gib=N`, from a log, settles it; {need}{versions}"
    yield RULE.finding(
        context,
        message,
        stated(context.document, "/inference/version", "/inference/engine", "/hardware/gpu"),
        help=SETTLE[answer.depends_on[0]],
        related=(("the policy", "/policy/uncertain"),),
        severity="error" if context.uncertain == "fail" else "",
    )


def _length(context: RuleContext) -> int:
    """Return tokens of the longest request."""
    answer = context.estimate.engine if context.estimate is not None else None
    if answer is None:
        return 0
    return answer.pool.length if answer.pool is not None else answer.settings.length or answer.settings.longest


RULE = Rule(
    code="MEM702",
    name="boot-depends",
    severity="warning",
    summary="Whether the serving engine boots depends on a term that memcheck cannot compute.",
    doc=__doc__,
    check=check,
    when=boot_depends,
    precision=MEASURED,
    needs_estimate=True,
)
