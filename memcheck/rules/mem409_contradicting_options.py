"""An option of the framework says something else than the plan's own key.

## What it does

Compares the options that have a key of their own in the plan with that key: `recompute_granularity` with
`activation_checkpointing`, `use_distributed_optimizer` and `use_megatron_fsdp` with `zero_stage`, and so on.

## Why it matters

Only one of the two can run, and they differ by gigabytes. memcheck prices the plan's own key.

## Example

    parallelism: {zero_stage: 0}
    training: {framework: megatron, options: {use_distributed_optimizer: true}}

## How to fix

Remove the option; the plan's key says it already.

## Options

None.

## Source

`megatron/training/arguments.py`; torchtitan `ParallelismConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.finding import Finding
from memcheck.job.types import TrainingJob
from memcheck.rules.types import Context, Rule
from memcheck.rules.words import shown


def check(context: Context) -> Iterator[Finding]:
    """One finding per option that contradicts the plan."""
    job = context.training
    if job is None:
        return
    for option, key, implied, actual in _pairs(job):
        if implied != actual:
            yield RULE.finding(
                context,
                f"`{option}: {shown(job.option(option))}` means `{key.rpartition('/')[2]}: {shown(implied)}`, "
                f"but the plan has {shown(actual)}",
                f"/training/options/{option}",
                help=f"remove the option, or change `{key.strip('/').replace('/', '.')}`",
                related=(("the plan's own key", key),),
            )


def _pairs(job: TrainingJob) -> Iterator[tuple[str, str, object, object]]:
    """Option, the plan's key, what the option implies for it, what the plan resolved to."""
    stage, options = job.layout.zero_stage, dict(job.options)
    if "recompute_granularity" in options:
        mode = options["recompute_granularity"]
        yield "recompute_granularity", "/training/activation_checkpointing", mode, job.checkpointing.mode
    if options.get("use_distributed_optimizer") is True:
        yield "use_distributed_optimizer", "/parallelism/zero_stage", stage or 1, stage
    if options.get("use_distributed_optimizer") is False:
        yield "use_distributed_optimizer", "/parallelism/zero_stage", 0, stage
    strategies = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    strategy = options.get("data_parallel_sharding_strategy")
    if isinstance(strategy, str) and strategy in strategies:
        yield "data_parallel_sharding_strategy", "/parallelism/zero_stage", strategies[strategy], stage
    reshard = options.get("fsdp_reshard_after_forward")
    if reshard in {"always", "never"}:
        keep = reshard == "always"
        yield (
            "fsdp_reshard_after_forward",
            "/parallelism/reshard_after_forward",
            keep,
            job.layout.reshard_after_forward,
        )


RULE = Rule(
    "MEM409",
    "contradicting-options",
    "error",
    "An option of the framework says something else than the plan's own key.",
    __doc__,
    check,
)
