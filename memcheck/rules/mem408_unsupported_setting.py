"""The framework does not have this method, loss, attention, recompute mode or key.

## What it does

Compares `method`, `loss`, `attention`, `activation_checkpointing`, `initialization` and `checkpoint` with what the
framework offers. Also reports keys that the framework has nothing for, if they differ from what it does anyway.
Examples are `reshard_after_forward` and `gradient_sync` under deepspeed and megatron, and `precision.reduce` under
torchtitan.

- 4-bit models are quantized on the GPU, layer by layer. Sharded ones need a loader that moves them to host memory.
- Other quantized bases cannot be sharded. Packed ones (GPTQ, AWQ, fp8) have no DoRA and no experts here.
- Only a plain loop gathers a state dict on the GPU.
- Only torch.distributed's and Megatron's sharded checkpoints are written while the training goes on.

Warns of an attention that the model's own class in transformers does not have.

## Why it matters

What would run needs other memory than the plan says: a missing fused loss alone is tens of gigabytes of logits.

## Example

    training: {framework: megatron, loss: fused-linear}

## How to fix

Take one of the settings that the finding lists, or another framework. Remove a key that the framework has nothing
for; the finding says what it does instead.

## Options

None.

## Source

The frameworks' own records; `memcheck list frameworks` prints them. Sharded 4-bit models: transformers pull requests
29587 (quantised on the GPU, then moved to host memory for FSDP and DeepSpeed to shard) and 32276 (one process of a
node).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.autograd.weight_formats import BITSANDBYTES, FourBits, WeightFormat
from memcheck.job.framework import Framework
from memcheck.job.training import ON_HOST, shards_parameters
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Moe
from memcheck.plan.finding import Finding
from memcheck.rules.budget import listed
from memcheck.rules.defaulted import deviates
from memcheck.rules.types import Rule, RuleContext, stated
from memcheck.rules.when import unoffered

"""Bases that are sharded: bitsandbytes packs their codes in a dtype of choice."""


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per setting that the framework does not offer, and per key that it has nothing for."""
    framework, job, stated = context.framework, context.training, context.plan.training
    if framework is None or job is None or stated is None:
        return
    if framework.lacks:
        yield from _lacking(context, job, framework)
    offered = (
        ("method", job.method, framework.methods),
        ("loss", (stated.loss.kind if stated.loss else None) or job.loss.kind, framework.losses.kinds),
        ("attention", job.attention, framework.attentions),
        ("activation_checkpointing", job.checkpointing.mode, framework.recompute),
    )
    for key, value, known in offered:
        if value in known or (key == "loss" and job.loss.kind in known):
            continue
        yield RULE.finding(
            context,
            f"{framework.title} has no {key.replace('_', ' ')} `{value}`",
            f"/training/{key}",
            help=f"it has: {listed(known)}",
            related=(("the framework", "/training/framework"),),
        )
    if stated.attention is not None and stated.attention != job.attention:
        model = context.architecture.model_type if context.architecture is not None else "this model"
        message = f"the class of {model} in transformers has no attention `{stated.attention}`, and stops at it"
        help = f"the estimate is of `{job.attention}`, which needs the most: write the one that runs"
        related = (("the model", "/model"),)
        yield RULE.finding(context, message, "/training/attention", help=help, related=related, severity="warning")
    yield from _around(context, framework, job)
    if job.base_format is not None:
        yield from _base(context, framework, job, job.base_format)


def _base(context: RuleContext, framework: Framework, job: TrainingJob, base_format: WeightFormat) -> Iterator[Finding]:
    """Yield what a quantised base does not go with."""
    held = base_format.name
    at = stated(context.document, "/training/base", "/training/method")
    trainer = context.plan.training.trainer if context.plan.training is not None else None
    patched = held == "int8" and job.fsdp_version == 2 and framework.trainer_package(trainer).own_fsdp2_prepare
    if not isinstance(base_format, FourBits) and shards_parameters(job.layout, framework) and not patched:
        message = f"a base held in {held} cannot be sharded: FSDP and ZeRO-3 divide parameters of floating dtypes"
        help = "write `zero_stage: 1` or 0, or `base: {held_in: nf4, storage: bf16}`"
        if held == "int8" and framework.runs_transformers:
            help += "; Axolotl's patch of FSDP2 divides it: `trainer: axolotl`, `options: {fsdp_version: 2}`"
        yield RULE.finding(context, message, at, help=help, related=(("the stage", "/parallelism/zero_stage"),))
    if base_format in BITSANDBYTES:
        return
    if job.lora is not None and job.lora.dora:
        message = f"peft has no DoRA over a base held in {held}"
        yield RULE.finding(context, message, "/training/lora/dora", help="remove `dora`", related=(("the base", at),))
    model = job.architecture
    if isinstance(model, Architecture) and any(isinstance(block.mlp, Moe) for block, _ in model.blocks):
        message = f"experts held in {held} have no memory model"
        yield RULE.finding(context, message, at, help="hold the base in nf4, int8 or bf16", related=(("it", "/model"),))


def _around(context: RuleContext, framework: Framework, job: TrainingJob) -> Iterator[Finding]:
    """Yield ways to make and save the model that this stack does not have."""
    title, initialization, checkpoint = framework.title, job.initialization, job.checkpoint
    related = (("the framework", "/training/framework"), ("the method", "/training/method"))
    places = ("device", *ON_HOST) if shards_parameters(job.layout, framework) else ("device",)
    if job.base_format in BITSANDBYTES and framework.runs_transformers and initialization.place not in places:
        message = f"{title} quantizes each tensor on the GPU of its process, not `{initialization.place}`"
        pointer = stated(context.document, "/training/initialization/place", "/training/initialization")
        help = f"leave it out, or write {listed((f'`{each}`' for each in places), 'or')}"
        yield RULE.finding(context, message, pointer, help=help, related=related)
    if checkpoint.offload == "none" and not framework.has_user_loop:
        message = f"{title} gathers a full state dict to host memory and ignores `offload`"
        help = "leave it out: only a loop of one's own can gather on the GPUs"
        yield RULE.finding(context, message, "/training/checkpoint/offload", help=help, related=related)
    if checkpoint.asynchronous and (not framework.load_and_save.asynchronous or checkpoint.state_dict != "sharded"):
        message, help = f"{title} has no asynchronous checkpoints", "leave it out"
        if framework.load_and_save.asynchronous:
            message, help = "only sharded state dicts are saved asynchronously", "write `state_dict: sharded`"
        yield RULE.finding(context, message, "/training/checkpoint/asynchronous", help=help, related=related)


def _lacking(context: RuleContext, job: TrainingJob, framework: Framework) -> Iterator[Finding]:
    """Yield one finding per key that the framework has nothing for and that says something."""
    for key, instead in framework.lacks.items():
        if deviates(context.plan, job, framework, key):
            yield RULE.finding(
                context,
                f"{framework.title} has no `{key.rpartition('.')[2]}`: {instead}",
                "/" + key.replace(".", "/"),
                help=f"remove `{key}`",
                related=(("the framework", "/training/framework"),),
            )


RULE = Rule(
    code="MEM408",
    name="unsupported-setting",
    severity="error",
    summary="The framework does not have this method, loss, attention, recompute mode or key.",
    doc=__doc__,
    check=check,
    when=unoffered,
)
