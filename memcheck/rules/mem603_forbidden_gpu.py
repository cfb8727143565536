"""The policy does not allow this GPU.

## What it does

Compares the plan's GPU, by the catalog's name or the plan's own, with `allowed-gpus` of the configuration's `[policy]`.

## Why it matters

A plan that fits a GPU which the team does not have would pass the gate, and would not fit the GPUs that it has.

## Example

    hardware: {gpu: b200}          # memcheck.toml: [policy] allowed-gpus = ["h100-80gb", "a100-*"]

## How to fix

Take one of the GPUs that the finding lists, or have the policy changed.

## Options

`[policy] allowed-gpus`: names, aliases, or patterns in which `*` matches anything.

## Source

The repository's configuration: [a policy that holds](../ci.md#a-policy-that-holds).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.catalog.names import AmbiguousNameError, UnknownNameError, find_gpu, normal
from memcheck.plan.finding import Finding
from memcheck.rules.budget import listed
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import governed


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for a GPU that is none of those allowed."""
    governance, gpu = context.governance, context.resolved.gpu
    if governance is None or not governance.allowed_gpus:
        return
    from fnmatch import fnmatchcase

    if any(fnmatchcase(normal(gpu.name), name) for entry in governance.allowed_gpus for name in names_of(entry)):
        return
    yield RULE.finding(
        context,
        f"the policy does not allow {gpu.name}",
        "/hardware/gpu",
        help=f"allowed: {listed(governance.allowed_gpus, 'or')}",
    )


def names_of(entry: str) -> tuple[str, ...]:
    """Return what an allowed name stands for: the catalog's names for it, or itself."""
    try:
        return (find_gpu(entry).name,)
    except AmbiguousNameError as error:
        return error.close
    except UnknownNameError:
        return (normal(entry),)


RULE = Rule(
    code="MEM603",
    name="forbidden-gpu",
    severity="error",
    summary="The policy does not allow this GPU.",
    doc=__doc__,
    check=check,
    when=governed,
)
