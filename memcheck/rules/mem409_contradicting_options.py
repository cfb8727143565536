"""An option of the framework says something else than the plan's own key.

## What it does

Compares options that have a key of their own in the plan with that key:

- `recompute_granularity` with `activation_checkpointing`;
- `use_distributed_optimizer` and `use_megatron_fsdp` with `zero_stage`;
- `enable_cpu_offload` with `offload`;
- DeepSpeed's `grad_accum_dtype` with a stage that can sum in it.

Megatron's `overlap_moe_expert_parallel_comm` needs expert parallelism. With a pipeline it needs virtual stages. It
allows no recompute of whole layers or of the experts.

## Why it matters

Only one of the two can run, and they differ by gigabytes. memcheck estimates the plan's own key. Where the plan leaves
the key out, the option decides: `use_distributed_optimizer: true` then is `zero_stage: 1`.

## Example

    parallelism: {zero_stage: 0}
    training: {framework: megatron, options: {use_distributed_optimizer: true}}

## How to fix

State what runs, in the plan's key alone: remove the option, and set the key to what the option says if that is right.

## Options

None.

## Source

`megatron/training/arguments.py`, `megatron/core/transformer/transformer_config.py`
(`overlap_moe_expert_parallel_comm`); torchtitan `ParallelismConfig`; DeepSpeed `runtime/engine.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.edge.screen import whole_number
from memcheck.job.layout import STRATEGIES
from memcheck.job.types import TrainingJob
from memcheck.job.versions import reduces_each
from memcheck.plan.finding import Finding
from memcheck.rules.budget import shown
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import restates

DISTRIBUTED = ("overlap_param_gather", "use_precision_aware_optimizer")
"""Megatron asserts ``use_distributed_optimizer`` for these."""


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per option that contradicts the plan."""
    job, training = context.training, context.plan.training
    if job is None or training is None:
        return
    each = reduces_each(training, dict(job.options), job.framework)
    for option, key, implied, actual in _pairs(job, each=each):
        if implied != actual:
            yield RULE.finding(
                context,
                f"`{option}: {shown(job.option(option))}` means `{key.rpartition('/')[2]}: {shown(implied)}`, "
                f"but the plan has {shown(actual)}",
                f"/training/options/{option}",
                help=f"change one of them: the option, or `{key.strip('/').replace('/', '.')}`",
                related=(("the plan's own key", key),),
            )


def _pairs(job: TrainingJob, *, each: bool) -> Iterator[tuple[str, str, object, object]]:
    """Yield option, the plan's key, what the option implies for it, what the plan resolved to.

    ``each``: Accelerate reduces every micro-batch, whatever the option says.
    """
    stage, options = job.layout.zero_stage, dict(job.options)
    if "recompute_granularity" in options:
        mode = options["recompute_granularity"]
        yield "recompute_granularity", "/training/activation_checkpointing", mode, job.checkpointing.mode
    if options.get("use_distributed_optimizer") is True:
        yield "use_distributed_optimizer", "/parallelism/zero_stage", stage or 1, stage
    if options.get("use_distributed_optimizer") is False:
        yield "use_distributed_optimizer", "/parallelism/zero_stage", 0, stage
    strategy = options.get("data_parallel_sharding_strategy")
    if isinstance(strategy, str) and strategy in STRATEGIES:
        yield "data_parallel_sharding_strategy", "/parallelism/zero_stage", STRATEGIES[strategy], stage
    if stage == 0 and job.layout.data * job.layout.context > 1:
        for option in DISTRIBUTED:
            if options.get(option) is True:
                yield option, "/parallelism/zero_stage", 1, stage
    if "use_megatron_fsdp" in options and "data_parallel_sharding_strategy" not in options:
        fsdp = bool(options["use_megatron_fsdp"])
        yield "use_megatron_fsdp", "/parallelism/zero_stage", (stage if (stage >= 2) == fsdp else 1 + 2 * fsdp), stage
    if options.get("accumulate_allreduce_grads_in_fp32") is True:
        yield "accumulate_allreduce_grads_in_fp32", "/training/precision/gradients", "fp32", job.recipe.gradients
    if "sync_each_batch" in options and not each:
        when = "every" if options["sync_each_batch"] else "last"
        yield "sync_each_batch", "/parallelism/gradient_sync", when, job.layout.gradient_sync
    if "enable_cpu_offload" in options:
        place = "cpu" if options["enable_cpu_offload"] else "none"
        yield "enable_cpu_offload", "/training/offload/parameters", place, job.parameter_offload
    if stage == 0 and options.get("grad_accum_dtype", job.recipe.params) != job.recipe.params:
        # DeepSpeed's _do_optimizer_sanity_check: "unsupported mix of model_dtype and grad_accum_dtype"
        yield "grad_accum_dtype", "/parallelism/zero_stage", 1, stage
    if options.get("overlap_moe_expert_parallel_comm") is True:
        yield from _hidden_routing(job)
    yield from _recompute(job, options.get("selective_ac_option"))
    reshard = options.get("fsdp_reshard_after_forward")
    if reshard is not None:
        keep = reshard == "always" or (reshard == "default" and job.layout.pipeline == 1)
        yield (
            "fsdp_reshard_after_forward",
            "/parallelism/reshard_after_forward",
            keep,
            job.layout.reshard_after_forward,
        )


def _hidden_routing(job: TrainingJob) -> Iterator[tuple[str, str, object, object]]:
    """Yield what Megatron asserts of a job that hides the routing of one micro-batch under the computation of another.

    Yields the option, the pointer of the contradicting key, the value that it needs, and the value that it has.
    """
    option, layout, c = "overlap_moe_expert_parallel_comm", job.layout, job.checkpointing
    yield option, "/parallelism/expert", max(2, layout.expert), layout.expert
    if layout.pipeline > 1:
        yield option, "/parallelism/virtual_stages", max(2, layout.virtual_stages), layout.virtual_stages
    place = "/training/activation_checkpointing"
    if c.mode == "full":
        yield option, place, "selective", c.mode
    elif "moe" in c.modules:
        yield option, place, tuple(name for name in c.modules if name != "moe"), c.modules


def _recompute(job: TrainingJob, chosen: object) -> Iterator[tuple[str, str, object, object]]:
    """Yield torchtitan's word for selective recompute: ``op``, or every how many blocks one is recomputed as a
    whole.
    """
    if chosen is None:
        return
    c, key = job.checkpointing, "/training/activation_checkpointing"
    every = whole_number(str(chosen))
    if every is not None:
        implied = ("mode full", f"every_n_layers {every}")
        yield "selective_ac_option", key, implied, (f"mode {c.mode}", f"every_n_layers {c.every_n_layers}")
    else:
        yield "selective_ac_option", key, "selective", c.mode


RULE = Rule(
    code="MEM409",
    name="contradicting-options",
    severity="error",
    summary="An option of the framework says something else than the plan's own key.",
    doc=__doc__,
    check=check,
    when=restates,
)
