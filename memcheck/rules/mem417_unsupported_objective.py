"""The objective cannot run as the plan says, or has no memory model there.

## What it does

Compares `training.objective`, `reference`, `trainer`, `head`, `sequences`, `evaluation` and `optimizer.in_backward`
with each other, with the framework and with the layout. It reports:

- an objective that the framework or trainer does not have;
- a reference for an objective without one, or `adapter-off` without adapters;
- a prompt as long as its row;
- an optimizer that cannot step in backward;
- a combination without a memory model: other parallelism, losses, torch.compile, or padding under flash attention.

## Why it matters

What a loss keeps of the logits differs by gigabytes between objectives and trainers. memcheck reports an error and
does not estimate another combination in its place.

## Example

    training: {framework: torchtitan, objective: dpo}

## How to fix

Take what the finding lists. Objectives beyond next-token cross-entropy are TRL's, under `framework: huggingface` and,
but for distillation, `deepspeed`; `dpo` and `distill` are also those of torchtune's recipes.

## Options

None.

## Source

TRL `trainer/dpo_trainer.py`, `trainer/kto_trainer.py`, `experimental/orpo`, `experimental/cpo`; LLaMA-Factory
`train/dpo/trainer.py`, which has a loss of its own; torchtune `recipes/lora_dpo_*.py`, `knowledge_distillation_*.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.framework import Framework
from memcheck.job.objective import BORROWED, OWN_LOSSES
from memcheck.job.training import unmodelled
from memcheck.job.types import COMPARED, DISTILLED, OWN, TrainingJob
from memcheck.plan.finding import Finding
from memcheck.plan.types import TrainingSpec
from memcheck.rules.budget import listed
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import objective

OBJECTIVE, HEAD = "/training/objective", "/training/head"


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per key that the objective or the framework contradicts."""
    framework, job, stated = context.framework, context.training, context.plan.training
    if framework is None or job is None or stated is None:
        return
    yield from _head(context, framework, job, stated)
    yield from _around(context, framework, job)
    yield from _in_backward(context, framework, job)
    if all(key is None for key in (stated.objective, stated.trainer, stated.reference, stated.teacher)):
        return
    yield from _trainer(context, framework, job, stated)
    yield from _reference(context, job, stated)
    yield from _teacher(context, job, stated)
    if job.objective.loss_in_model and job.layout.tensor > 1:
        message = "TRL's loss without whole logits gathers the head, which has no memory model with tensor parallelism"
        help = "write `tensor: 1`, or `loss: standard` with a release before 1.15, which takes whole logits"
        related = (("the trainer", "/training/trainer"),)
        yield RULE.finding(context, message, "/parallelism/tensor", help=help, related=related)
    if job.objective.name == "sft":
        return
    if job.objective.name in framework.objectives and job.head.kind == "lm":
        yield from _layout(context, job, f"`{job.objective.name}`")
    length = stated.sequence_length
    if job.objective.loss_code == OWN:
        yield from _own(context, job)
    if length is not None and job.objective.prompt_tokens >= length:
        yield RULE.finding(
            context,
            f"a prompt of {job.objective.prompt_tokens} tokens leaves nothing to score of {length}",
            "/training/objective/prompt_length",
            help="write the tokens of the prompt alone",
            related=(("the row", "/training/sequence_length"),),
        )


def _trainer(context: RuleContext, framework: Framework, job: TrainingJob, stated: TrainingSpec) -> Iterator[Finding]:
    """Yield findings on a trainer or objective that the framework does not have."""
    name, who = job.objective.name, stated.trainer.name if stated.trainer else None
    related = (("the framework", "/training/framework"),)
    if who is not None and who not in framework.trainers:
        help = f"it has: {listed(framework.trainers)}" if framework.trainers else "remove `trainer`"
        yield RULE.finding(
            context, f"{framework.title} has no trainer `{who}`", "/training/trainer", help=help, related=related
        )
    if name not in framework.objectives:
        help = f"it has: {listed(framework.objectives)}"
        yield RULE.finding(
            context, f"{framework.title} has no objective `{name}`", OBJECTIVE, help=help, related=related
        )
    elif name != "sft" and who is not None and who not in BORROWED and name not in OWN_LOSSES.get(who, ()):
        message = f"{who} has no objective `{name}`"
        if who in OWN_LOSSES:
            message = f"the loss that {who} takes for `{name}` has no memory model"
        help = f"`trainer: {listed(BORROWED, 'or')}`"
        yield RULE.finding(context, message, "/training/trainer", help=help, related=(("the objective", OBJECTIVE),))


def _head(context: RuleContext, framework: Framework, job: TrainingJob, stated: TrainingSpec) -> Iterator[Finding]:
    """Yield findings on a head that contradicts the objective or the framework."""
    kind, name = job.head.kind, job.objective.name
    if kind == "lm":
        if stated.head is not None and stated.head.labels is not None:
            message = "a head over the vocabulary has no labels of its own"
            yield RULE.finding(context, message, "/training/head/labels", help="name the kind of head")
        if name == "reward":
            message, help = "`reward` scores sequences, and `lm` is logits over the vocabulary", "write `head: reward`"
            yield RULE.finding(context, message, HEAD, help=help, related=(("the objective", OBJECTIVE),))
        return
    related = (("the framework", "/training/framework"), ("the objective", OBJECTIVE))
    if kind not in framework.heads:
        message, help = f"{framework.title} has no head `{kind}`", f"it has: {listed(framework.heads)}"
        yield RULE.finding(context, message, HEAD, help=help, related=related)
        return
    if name not in ("sft", "reward"):
        message = f"`{name}` scores tokens of the vocabulary, which the head `{kind}` has none of"
        yield RULE.finding(context, message, HEAD, help="remove `head`", related=related)
    if name == "reward" and kind not in ("reward", "classification"):
        message = f"`reward` scores sequences, and the head `{kind}` does not"
        yield RULE.finding(context, message, HEAD, help="write `head: reward`", related=related)
    if kind == "embedding" and stated.head is not None and stated.head.labels is not None:
        yield RULE.finding(context, "an embedding has no labels", "/training/head/labels", help="remove `labels`")
    yield from _layout(context, job, f"the head `{kind}`")


def _around(context: RuleContext, framework: Framework, job: TrainingJob) -> Iterator[Finding]:
    """Yield padding, and the pass between steps."""
    related = (("the framework", "/training/framework"),)
    if job.sequences != "packed":
        what = unmodelled(job.sequences, context.architecture, framework, job.attention, job.layout.context)
        if what:
            message = f"{job.sequences} rows under {what} have no memory model"
            help = "write `sequences: packed`, with rows as long as the longest"
            yield RULE.finding(context, message, "/training/sequences", help=help, related=related)
    if job.evaluation is None:
        return
    pointer = "/training/evaluation"
    layout = job.layout
    cases = (
        (not framework.runs_transformers, framework.title),
        (layout.tensor > 1, "tensor parallelism"),
        (layout.context > 1, "context parallelism"),
        (layout.pipeline > 1, "pipeline parallelism"),
        (context.architecture is None, "a rough model"),
        (context.architecture is not None and context.architecture.vision is not None, "a vision tower"),
    )
    for there, what in cases:
        if there:
            message = f"an evaluation under {what} has no memory model"
            yield RULE.finding(context, message, pointer, help="remove `evaluation`", related=related)
            return


def _in_backward(context: RuleContext, framework: Framework, job: TrainingJob) -> Iterator[Finding]:
    """Yield what a step in backward excludes."""
    if not job.optimizer.in_backward:
        return
    cases = (
        (not framework.optimizers.in_backward, f"{framework.title} has none", "/training/framework"),
        (job.layout.world_size > 1, "it is known on one GPU alone", "/hardware/gpus_per_node"),
        (job.forward_passes > 1, "gradients would have to wait for other micro-batches", "/training"),
        (job.clip_grad_norm, "the norm of all gradients is known only after the backward", "/training/clip_grad_norm"),
        (job.optimizer.offload != "none", "its states are on the host", "/training/optimizer/offload"),
    )
    for there, why, pointer in cases:
        if there:
            message = f"the optimizer cannot step in backward: {why}"
            place = "/training/optimizer/in_backward"
            help = "remove `in_backward`, or what excludes it"
            yield RULE.finding(context, message, place, help=help, related=(("this", pointer),))
            return


def _reference(context: RuleContext, job: TrainingJob, stated: TrainingSpec) -> Iterator[Finding]:
    """Yield findings on a reference model that the objective or the framework contradicts."""
    name, reference = job.objective.name, stated.reference
    if reference is None:
        return
    message = help = ""
    if name not in COMPARED:
        if reference != "none":
            message, help = f"`{name}` compares with no reference", "remove `reference`"
    elif reference == "none":
        message, help = f"`{name}` compares the policy with a reference", "write `reference: resident`"
    elif reference == "adapter-off" and job.method == "full":
        message = "there are no adapters to turn off: the model itself is trained"
        help = "write `reference: resident`, or `method: lora`"
    elif job.objective.loss_code == OWN and reference != ("resident" if job.method == "full" else "adapter-off"):
        message = "the recipes compare with the model without its adapters, or with a second model in full training"
        help = "remove `reference`"
    elif reference == "host" and job.framework.has_sharding_engine:
        message = "a reference that DeepSpeed's engine keeps on the host has no memory model"
        help = "write `reference: precomputed`, or `reference: resident` for an upper bound"
    elif reference == "host" and (job.parameter_offload == "none" or job.layout.zero_stage < 3):
        message = "TRL keeps the reference on the GPU, but for FSDP2 that offloads parameters"
        help = "write `reference: precomputed`, or `offload: {parameters: cpu}` with `zero_stage: 3`"
    if message:
        yield RULE.finding(context, message, "/training/reference", help=help, related=(("the objective", OBJECTIVE),))


def _own(context: RuleContext, job: TrainingJob) -> Iterator[Finding]:
    """Yield what a second model under a recipe of the framework's own excludes."""
    kept = job.auxiliary_models and job.layout.zero_stage == 3 and not job.layout.reshard_after_forward
    if kept:
        message = "memcheck has no memory model of a second model that stays gathered after its forward"
        place = "/parallelism/reshard_after_forward"
        yield RULE.finding(context, message, place, help="remove it", related=(("the objective", OBJECTIVE),))
    if job.head.kind == "lm" and job.method == "qlora" and job.objective.name == "dpo":
        message = "`dpo` over a base in four bits has no memory model under these recipes"
        yield RULE.finding(
            context, message, "/training/method", help="write `method: lora`", related=(("the objective", OBJECTIVE),)
        )


def _teacher(context: RuleContext, job: TrainingJob, stated: TrainingSpec) -> Iterator[Finding]:
    """Yield what a teacher contradicts, or a missing one."""
    name, related = job.objective.name, (("the objective", OBJECTIVE),)
    place = "/training/teacher"
    if stated.teacher is not None and name not in DISTILLED:
        yield RULE.finding(context, f"`{name}` has no teacher", place, help="remove `teacher`", related=related)
    if name not in DISTILLED:
        return
    teacher = next((c.architecture for c in job.auxiliary_models), None)
    student = context.architecture
    if teacher is None:
        message = f"`{name}` learns from a teacher, which the plan does not name"
        if stated.teacher is not None:
            message = "a rough model cannot be a teacher: its layers are not known"
        pointer = OBJECTIVE if stated.teacher is None else place
        yield RULE.finding(context, message, pointer, help="write `teacher: {model: ...}`", related=related)
    elif student is not None and teacher.vocab_size != student.vocab_size:
        message = f"the teacher has {teacher.vocab_size} tokens in its vocabulary, the model {student.vocab_size}"
        help = "a divergence compares token by token: take a teacher with the same vocabulary"
        yield RULE.finding(context, message, place, help=help, related=(("the model", "/model"),))
    if job.layout.zero_stage > 1 and job.objective.loss_code != OWN:
        message = f"`{name}` with parameters that are sharded has no memory model"
        yield RULE.finding(context, message, "/parallelism/zero_stage", help="write `zero_stage: 0`", related=related)


def _layout(context: RuleContext, job: TrainingJob, who: str) -> Iterator[Finding]:
    """Yield combinations whose loss has no memory model."""
    layout = job.layout
    cases = (
        (layout.tensor > 1, "tensor parallelism", "/parallelism/tensor"),
        (layout.context > 1, "context parallelism", "/parallelism/context"),
        (layout.pipeline > 1, "pipeline parallelism", "/parallelism/pipeline"),
        (job.loss.kind != (job.objective.usual_loss or "standard"), f"loss `{job.loss.kind}`", "/training/loss"),
        (job.compile, "torch.compile", "/training/compile"),
        (context.architecture is None, "a rough model", "/model"),
    )
    for there, what, pointer in cases:
        if there:
            message = f"{who} with {what} has no memory model"
            yield RULE.finding(context, message, pointer, related=(("the objective", OBJECTIVE),))


RULE = Rule(
    code="MEM417",
    name="unsupported-objective",
    severity="error",
    summary="The objective cannot run as the plan says, or has no memory model there.",
    doc=__doc__,
    check=check,
    when=objective,
    batch=True,
)
