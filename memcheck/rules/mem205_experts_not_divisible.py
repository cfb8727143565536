"""The experts cannot be placed on the expert ranks.

## What it does

Checks four things when `expert` > 1:

- the model has experts;
- their number is a multiple of `expert`;
- the ranks of one pipeline stage (`data * context * tensor`) are a multiple of `expert * expert_tensor`;
- `expert_tensor` divides the width of an expert.

Under torchtitan `expert_tensor` is 1 or the `tensor` degree. Under Megatron-LM it is 1 if experts have biases.

## Why it matters

Expert parallelism takes its ranks from the data, context and tensor ranks of a stage. What does not divide stops the
job while the process groups are built.

## Example

    model: mixtral-8x7b               # 8 experts
    parallelism: {expert: 16}

## How to fix

Take an `expert` degree that divides both the number of experts and the ranks of a stage.

## Options

None.

## Source

`megatron/core/transformer/transformer_config.py` ("num_moe_experts should be divisible by
expert_model_parallel_size", "Bias in Moe is only supported when ETP==1"), `megatron/core/parallel_state.py`.
torchtitan `ParallelismConfig.expert_parallel_degree`. For releases that have `expert_tensor_parallel_degree`, their
`distributed/parallel_dims.py` ("Currently we only support ETP=TP or ETP=1").
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import divisors, listed
from memcheck.rules.layout import moes
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import split


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per reason."""
    layout, model = context.layout, context.architecture
    expert = layout.expert
    if (expert == 1 and layout.expert_tensor == 1) or model is None:
        return
    mixtures = moes(context)
    if not mixtures:
        if expert > 1:
            yield RULE.finding(
                context,
                f"expert {expert}, but {model.model_type} has no experts to place",
                "/parallelism/expert",
                help="remove `expert`",
                related=(("the model", "/model"),),
            )
        return
    for moe in mixtures:
        if moe.experts % expert:
            yield RULE.finding(
                context,
                f"{moe.experts} experts cannot be split over expert {expert} ranks",
                "/parallelism/expert",
                help=f"degrees that divide {moe.experts}: {listed(divisors(moe.experts, layout.world_size), 'or')}",
                related=(("the model", "/model"),),
            )
            break
    yield from _ranks(context)
    for moe in mixtures:
        if moe.width % layout.expert_tensor:
            yield RULE.finding(
                context,
                f"an expert's width of {moe.width} cannot be split over expert_tensor {layout.expert_tensor} ranks",
                "/parallelism/expert_tensor",
                help="take a degree that divides the width",
            )
            break
    yield from _framework(context)


def _framework(context: RuleContext) -> Iterator[Finding]:
    """Yield findings on `expert_tensor` where it breaks a further condition of the framework."""
    layout, framework = context.layout, context.framework
    if framework is None or layout.expert_tensor == 1:
        return
    with_tensor = "expert_tensor" in framework.parallelism.degrees and not framework.has_expert_tensor_groups
    if with_tensor and layout.expert_tensor != layout.tensor:
        yield RULE.finding(
            context,
            f"expert_tensor {layout.expert_tensor} is neither 1 nor the tensor degree, {layout.tensor}",
            "/parallelism/expert_tensor",
            help=f"{framework.name} divides an expert over the tensor ranks, or not at all",
            related=(("tensor", "/parallelism/tensor"),),
        )
    if framework.has_expert_tensor_groups and any(moe.bias for moe in moes(context)):
        yield RULE.finding(
            context,
            f"experts with biases cannot be split over expert_tensor {layout.expert_tensor} ranks",
            "/parallelism/expert_tensor",
            help="Megatron-LM supports biases of experts with expert_tensor 1 only",
            related=(("the model", "/model"),),
        )


def _ranks(context: RuleContext) -> Iterator[Finding]:
    """Yield a finding if the expert ranks do not divide the ranks of a pipeline stage."""
    layout = context.layout
    stage = layout.data * layout.context * layout.tensor
    group = layout.expert * layout.expert_tensor
    if stage % group:
        yield RULE.finding(
            context,
            f"expert {layout.expert} * expert_tensor {layout.expert_tensor} = {group} does not divide the "
            f"{stage} ranks of a stage (data {layout.data} * context {layout.context} * tensor {layout.tensor})",
            "/parallelism/expert",
            help=f"expert ranks are taken from the stage's own ranks: use a divisor of {stage}, or more GPUs",
            related=(("data", "/parallelism/data"), ("tensor", "/parallelism/tensor")),
        )


RULE = Rule(
    code="MEM205",
    name="experts-not-divisible",
    severity="error",
    summary="The experts cannot be placed on the expert ranks.",
    doc=__doc__,
    check=check,
    when=split,
    blocking=True,
)
