"""Recomputing core attention frees nothing, because its kernel keeps nothing that recomputing would drop.

## What it does

Reports Megatron's selective recompute of `core_attn` (its default) where FlashAttention or cuDNN's fused attention
runs, with what it costs on the worst rank.

## Why it matters

Selective recompute was made for kernels that keep the scores, sequence x sequence for every head. A flash kernel
keeps queries, keys, values, its output and one number per row. A checkpoint around it keeps queries, keys and values
as its arguments, and the projection after it keeps the output. That is the same, less the one number. With grouped
heads it is more: the values are a view of the whole query-key-value projection, which stays. And the kernel runs
twice.

## Example

    training:
      framework: megatron
      activation_checkpointing: selective          # attention is flash unless the plan says otherwise

## How to fix

Leave `core_attn` out: `activation_checkpointing: none`, or `{mode: selective, modules: [...]}` with modules that keep
much: `layernorm`, `moe_act`, `mlp`, `shared_experts`, `mla_up_proj`, `moe`.

## Options

None.

## Source

Megatron-core `transformer/attention.py` (`_checkpointed_attention_forward`), `tensor_parallel/random.py`
(`CheckpointFunction` saves its arguments); TransformerEngine `attention/dot_product_attention/utils.py`
(`get_qkv_layout` makes copies of what is not contiguous).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.layers import SELECTIVE_DEFAULT
from memcheck.frameworks.megatron.setting import argument_options, attention_backend
from memcheck.job.types import Checkpointing, TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.plan.finding import Finding
from memcheck.rules import REVIEW
from memcheck.rules.budget import gib
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import miscounted

WORTH_NAMING = 2**20


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for core attention that is recomputed although its kernel keeps no scores."""
    job, framework = context.training, context.framework
    if job is None or framework is None or context.architecture is None or framework.selective_recompute != "modules":
        return
    modules = recomputed(job)
    backend = attention_backend(job, context.resolved.gpu.arch)
    if "core_attn" not in modules or backend not in ("flash", "fused"):
        return
    kernel = "FlashAttention" if backend == "flash" else "cuDNN's fused attention"
    cost = _cost(context, job, modules)
    named = job.option("recompute_modules") or job.option("recompute_granularity")
    yield RULE.finding(
        context,
        f"recomputing core attention frees nothing: {kernel} keeps what the checkpoint keeps{cost}",
        "/training/options" if named else "/training/activation_checkpointing",
        help="leave `core_attn` out: `activation_checkpointing: none`, or `{mode: selective, modules: [...]}` with "
        "modules that keep much",
        related=(("attention", "/training/attention"),),
    )


def recomputed(job: TrainingJob) -> tuple[str, ...]:
    """Modules that selective recompute runs again."""
    options = dict(argument_options(job))
    if options.get("recompute_granularity") != "selective":
        return ()
    named = options.get("recompute_modules")
    if isinstance(named, str):
        return tuple(named.replace(",", " ").split())
    return tuple(map(str, named)) if isinstance(named, tuple) and named else SELECTIVE_DEFAULT


def without_core_attention(job: TrainingJob, modules: tuple[str, ...]) -> TrainingJob:
    """Return the job with the other modules recomputed as before."""
    others = tuple(m for m in modules if m != "core_attn")
    dropped = ("recompute_granularity", "recompute_modules", "moe_layer_recompute")
    options = tuple(o for o in job.options if o[0] not in dropped)
    checkpointing = Checkpointing("selective", modules=others) if others else Checkpointing()
    return job._replace(options=options, checkpointing=checkpointing)


def _cost(context: RuleContext, job: TrainingJob, modules: tuple[str, ...]) -> str:
    """Say how many more bytes the plan needs with the recomputation; an empty text below ``WORTH_NAMING``."""
    if miscounted(context):  # a layout of other GPUs has no estimate
        return ""
    gpu, overhead = context.resolved.gpu, context.resolved.overhead
    try:
        plain = estimate(without_core_attention(job, modules), gpu, overhead, every_rank=False)
        chosen = estimate(job, gpu, overhead, every_rank=False)
    except UnsupportedError:
        return ""
    more = chosen.allocated_bytes - plain.allocated_bytes
    return f", and here it costs {gib(more)}" if more >= WORTH_NAMING else ""


RULE = Rule(
    code="MEM414",
    name="recompute-frees-nothing",
    severity="warning",
    summary="Recomputing core attention frees nothing where a flash kernel runs.",
    doc=__doc__,
    check=check,
    profile=REVIEW,
)
