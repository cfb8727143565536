"""The vocabulary does not split evenly over the tensor ranks.

## What it does

Checks `vocab_size % tensor`. Megatron pads the vocabulary (`make_vocab_size_divisible_by`), so it is left alone.

## Why it matters

With DTensor the first ranks get the larger shards of the embedding and the head, and the step waits for them; loss
parallelism and some checkpoint formats refuse uneven shards.

## Example

    model: gpt2                       # 50257 tokens, a prime
    parallelism: {tensor: 2}

## How to fix

Pad the vocabulary (`model: {name: gpt2, overrides: {vocab_size: 50304}}`), as the training code then has to do too.

## Options

None.

## Source

torch `distributed/tensor/placement_types.py` (`Shard._split_tensor` puts the remainder on the first ranks).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.autograd.tensor import ceil_div
from memcheck.plan.finding import Finding
from memcheck.rules import REVIEW
from memcheck.rules.types import PROVABLE, Rule, RuleContext


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when a framework without padding shards an indivisible vocabulary."""
    model, tensor, framework = context.architecture, context.layout.tensor, context.framework
    if model is None or framework is None or framework.parallelism.pads_vocabulary or model.vocab_size % tensor == 0:
        return
    rows = ceil_div(model.vocab_size, tensor)
    padded = ceil_div(model.vocab_size, 64 * tensor) * 64 * tensor
    yield RULE.finding(
        context,
        f"a vocabulary of {model.vocab_size} does not split over tensor {tensor} ranks: the first hold {rows} rows, "
        f"the last {model.vocab_size - rows * (tensor - 1)}",
        "/parallelism/tensor",
        help=f"pad the vocabulary to {padded} (`overrides: {{vocab_size: {padded}}}`), or change the degree",
        related=(("the model", "/model"),),
    )


RULE = Rule(
    code="MEM204",
    name="vocabulary-not-divisible",
    severity="warning",
    summary="The vocabulary does not split evenly over the tensor ranks.",
    doc=__doc__,
    check=check,
    precision=PROVABLE,
    profile=REVIEW,
)
