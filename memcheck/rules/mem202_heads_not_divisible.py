"""The attention heads cannot be split over the tensor (or Ulysses) ranks.

## What it does

Checks that the query heads of every attention layer are a multiple of `tensor`, and of `tensor * context` where
context parallelism moves whole heads (DeepSpeed Ulysses, Megatron's `cp_comm_type: a2a`).

## Why it matters

A head is never cut. The job stops while the model is built.

## Example

    model: qwen2.5-7b                 # 28 heads
    parallelism: {tensor: 8}

## How to fix

Take a degree that divides the number of heads; put the remaining GPUs into `data`, `pipeline` or `context`.

## Options

None.

## Source

`megatron/core/transformer/transformer_config.py` ("num_attention_heads must be a multiple of
tensor_model_parallel_size"), DeepSpeed `sequence/layer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import divisors, listed
from memcheck.rules.layout import head_counts, moves_heads
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import split


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for the first head count that a degree does not divide."""
    layout = context.layout
    by_heads = moves_heads(context)
    degree = layout.tensor * (layout.context if by_heads else 1)
    for heads in head_counts(context):
        if heads % degree == 0:
            continue
        product = f"tensor {layout.tensor}" + (f" * context {layout.context} = {degree}" if by_heads else "")
        name = "context" if by_heads and heads % layout.tensor == 0 else "tensor"
        fitting = listed(divisors(heads, layout.world_size), "or")
        yield RULE.finding(
            context,
            f"{heads} attention heads cannot be split over {product} ranks",
            f"/parallelism/{name}",
            help=f"degrees that divide {heads}: {fitting}",
            related=(("the model", "/model"),),
        )
        return


RULE = Rule(
    code="MEM202",
    name="heads-not-divisible",
    severity="error",
    summary="The attention heads cannot be split over the tensor ranks.",
    doc=__doc__,
    check=check,
    when=split,
    blocking=True,
)
