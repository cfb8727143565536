"""The key/value heads cannot be split over the tensor ranks, or have to be replicated.

## What it does

Checks the key/value heads of grouped-query attention against `tensor`. Megatron copies them when `tensor` is a
multiple of their number, and so do inference engines: then this is a warning. Everywhere else it is an error.

## Why it matters

Where heads are copied, every rank holds a whole head. The KV cache and the K/V activations then no longer shrink with
the tensor degree. Where they are not copied, the job stops while the model is built.

## Example

    model: qwen2.5-7b                 # 4 key/value heads
    parallelism: {tensor: 8}

## How to fix

Take a tensor degree that divides the number of key/value heads.

## Options

None.

## Source

`megatron/core/transformer/transformer_config.py` ("num_query_groups must be a multiple or divisor of
tensor_model_parallel_size"); vLLM `get_total_num_kv_heads` (at least one per rank).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import divisors, listed
from memcheck.rules.layout import kv_head_counts
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import split


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for the first number of key/value heads that the tensor degree does not divide."""
    tensor = context.layout.tensor
    for heads in kv_head_counts(context):
        if heads % tensor == 0:
            continue
        copies = tensor % heads == 0 and (context.framework is None or context.framework.copies_kv_heads)
        if copies:
            outcome = f"each is copied to {tensor // heads} ranks"
        else:
            outcome = f"{context.framework.name if context.framework else 'inference'} cannot place them"
        yield RULE.finding(
            context,
            f"{heads} key/value heads over tensor {tensor} ranks: {outcome}",
            "/parallelism/tensor",
            help=f"tensor degrees that divide {heads}: {listed(divisors(heads, context.layout.world_size), 'or')}",
            related=(("the model", "/model"),),
            severity="warning" if copies else "error",
        )
        return


RULE = Rule(
    code="MEM203",
    name="kv-heads-not-divisible",
    severity="error",
    summary="The key/value heads cannot be split over the tensor ranks, or are copied.",
    doc=__doc__,
    check=check,
    when=split,
    blocking=True,
)
