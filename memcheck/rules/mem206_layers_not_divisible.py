"""The layers cannot be split over the pipeline's stages.

## What it does

Checks the number of layers against `pipeline * virtual_stages`.

- Megatron wants equal stages, unless one of its options for uneven stages is set.
- torchtitan and torch's pipelining take uneven stages, but no empty one.
- A `pipeline_model_parallel_layout` decides the number of virtual stages: its stages over those of `pipeline`. It
  names every layer once, and every layer of multi-token prediction.

## Why it matters

The job stops while the model is built, and the largest stage decides the memory of all.

## Example

    model: qwen2.5-7b                 # 28 layers
    parallelism: {pipeline: 8}        # with framework: megatron

## How to fix

Take a number of stages that divides the layers, or say how the stages differ. DeepSeek-V3 trains 61 layers on 16
stages: 3 layers on the first, 2 on the last and 4 on each between.

## Options

Megatron: `num_layers_in_first_pipeline_stage`, `num_layers_in_last_pipeline_stage`,
`account_for_embedding_in_pipeline_split`, `account_for_loss_in_pipeline_split`, `pipeline_model_parallel_layout`.

## Source

`megatron/core/transformer/transformer_config.py`, `megatron/training/arguments.py` ("Number of layers should be
divisible by the pipeline-model-parallel size"; virtual stages are `num_stages // pipeline_model_parallel_size` of the
layout), `megatron/core/transformer/pipeline_parallel_layer_layout.py` (`validate_layer_layout`).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.autograd.tensor import ceil_div
from memcheck.frameworks.megatron.stages import stages_of_layout
from memcheck.job.types import TrainingJob
from memcheck.plan.finding import Finding
from memcheck.rules.budget import divisors, listed
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import staged

ENDS = (
    ("num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers"),
    ("num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers"),
)

WRITTEN = "pipeline_model_parallel_layout"
PER_STAGE = "num_layers_per_virtual_pipeline_stage"


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when the stages cannot be filled, or not equally where they must be equal."""
    layout, layers = context.layout, context.layers
    stages = layout.pipeline * layout.virtual_stages
    virtual = f" * virtual_stages {layout.virtual_stages} = {stages} stages" if layout.virtual_stages > 1 else " stages"
    job, framework = context.training, context.framework
    if layout.pipeline == 1:
        if layout.virtual_stages > 1:
            message = f"virtual_stages {layout.virtual_stages} without a pipeline to interleave"
            yield RULE.finding(context, message, "/parallelism/virtual_stages", help="remove it, or set `pipeline`")
        elif job is not None and job.option(PER_STAGE):
            message = f"{PER_STAGE} without a pipeline to interleave"
            yield RULE.finding(context, message, f"/training/options/{PER_STAGE}", help="remove it, or set `pipeline`")
        elif job is not None and job.option(WRITTEN):
            yield from _disagrees(context, job)
        elif job is not None and framework is not None and framework.has_even_stages and (ends := _ends(job)):
            message = f"{sum(ends.values())} layers in the stated end stage, but the only stage has all {layers}"
            if len(ends) > 1 or sum(ends.values()) != layers:
                yield RULE.finding(
                    context,
                    message,
                    f"/training/options/{next(iter(ends))}",
                    help=f"leave out {listed(tuple(f'`{name}`' for name in ends), 'and')}, or set `pipeline`",
                    related=(("the model", "/model"),),
                )
        return
    reason = ""
    if layers + (0 if job is None else _counted(job)) < stages:
        reason = f"{layers} layers cannot fill pipeline {layout.pipeline}{virtual}"
    elif job is not None and framework is not None and framework.has_even_stages:
        if job.option(WRITTEN):
            yield from _disagrees(context, job)
            return
        reason = _uneven(job, layers, stages, f"pipeline {layout.pipeline}{virtual}")
    if reason:
        even = f"numbers of stages that divide {layers}: {listed(divisors(layers, 4 * stages), 'or')}"
        shorter = _shorter_ends(context, layers)
        yield RULE.finding(
            context,
            reason,
            "/parallelism/pipeline",
            help=f"{shorter}; {even}" if shorter else even,
            related=(("virtual stages", "/parallelism/virtual_stages"), ("the model", "/model")),
        )


def _shorter_ends(context: RuleContext, layers: int) -> str:
    """Return the options with which the first and the last stage take what is left, and the others are equal."""
    framework, layout = context.framework, context.layout
    names = [names[-1] for names in ENDS]
    if framework is None or not set(names) <= set(framework.options) or layout.pipeline < 3 or layers < layout.pipeline:
        return ""
    if layout.virtual_stages > 1:
        return f"write the stages as `options: {{{WRITTEN}: ...}}`"
    middle = layout.pipeline - 2
    each = next(n for n in range(ceil_div(layers, layout.pipeline), 0, -1) if layers - n * middle >= 2)
    first = ceil_div(layers - each * middle, 2)
    last = layers - each * middle - first
    return f"write `options: {{{names[0]}: {first}, {names[1]}: {last}}}`, {each} on each stage between"


def _disagrees(context: RuleContext, job: TrainingJob) -> Iterator[Finding]:
    """Yield a written layout with other stages or layers than the plan has."""
    written = stages_of_layout(job.option(WRITTEN))
    if written:
        yield from _miscounted(context, job, "".join(written))
    count = len(written)
    ways, virtual = context.layout.pipeline, context.layout.virtual_stages
    if count == ways * virtual:
        return
    if count % ways:
        reason, help = f"which {ways} pipeline ranks do not divide", f"separate a multiple of {ways} stages with |"
    else:
        reason = f"{count // ways} on each of {ways} ranks, but the plan has `virtual_stages: {virtual}`"
        help = f"set `virtual_stages: {count // ways}`, or write {ways * virtual} stages"
    yield RULE.finding(
        context,
        f"`{WRITTEN}` has {count} stages, {reason}",
        f"/training/options/{WRITTEN}",
        help=help,
        related=(("stages", "/parallelism/pipeline"), ("virtual stages", "/parallelism/virtual_stages")),
    )


def _miscounted(context: RuleContext, job: TrainingJob, letters: str) -> Iterator[Finding]:
    """Yield what the layout names more or less often than there is of it."""
    predictions = job.option("mtp_num_layers") or 0
    for letter, what, wanted, key in (
        ("E", "embeddings", 1, "/model"),
        ("t", "layers", context.layers, "/model"),
        ("m", "multi-token-prediction layers", predictions, "/training/options"),
        ("L", "losses", 1, "/model"),
    ):
        if letters.count(letter) != wanted:
            yield RULE.finding(
                context,
                f"`{WRITTEN}` has {letters.count(letter)} {what} (`{letter}`), the model has {wanted}",
                f"/training/options/{WRITTEN}",
                help=f"write `{letter}` {wanted} times, or leave the layout out",
                related=((what, key),),
            )


def _ends(job: TrainingJob) -> dict[str, int]:
    """Return the options that say how many layers the first and the last stage have, with those numbers."""
    stated = (((n, v) for n in names if isinstance(v := job.option(n), int)) for names in ENDS)
    return dict(found for each in stated if (found := next(each, None)) is not None)


def _uneven(job: TrainingJob, layers: int, stages: int, where: str) -> str:
    """Say why Megatron refuses the split, or an empty string."""
    given = _ends(job).values()
    if given:
        middle, ranks = layers - sum(given), job.layout.pipeline - len(given)
        if ranks < 0 or middle < 0 or (ranks and middle % ranks) or (not ranks and middle):
            return f"{middle} layers between the stated end stages do not split over {ranks} pipeline ranks"
        return ""
    counted = layers + _counted(job)
    if counted % stages:
        extra = f" (counting {counted - layers} for embedding and loss)" if counted > layers else ""
        return f"{layers} layers{extra} do not split equally over {where}"
    return ""


def _counted(job: TrainingJob) -> int:
    """Return how many of embedding and loss count as a layer."""
    names = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    return sum(bool(job.option(name)) for name in names)


RULE = Rule(
    code="MEM206",
    name="layers-not-divisible",
    severity="error",
    summary="The layers cannot be split over the pipeline's stages.",
    doc=__doc__,
    check=check,
    when=staged,
    blocking=True,
)
