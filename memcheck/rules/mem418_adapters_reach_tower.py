"""Adapters whose targets are looked for everywhere reach the vision tower and the projector, too.

## What it does

Reports LoRA targets that name linear layers of a vision tower or a projector, where the plan does not say by
`training.lora.parts` which parts of the model get adapters. `all-linear` always does.

## Why it matters

PEFT looks for its targets in the whole model and leaves out the output head alone. Adapters in a tower need its whole
graph. Every layer saves its activations for each patch, and every adapted linear layer also saves an fp32 copy of its
input; a frozen tower saves nothing. Such adapters are rarely meant, and with many images they are the largest term.

## Example

    model: qwen2.5-vl-7b
    training: {method: lora, lora: {target_modules: all-linear}}      # the tower's qkv, proj and mlp, too

## How to fix

Keep PEFT out of the tower by `exclude_modules` or a pattern, and say so: `lora: {parts: [language]}`. Where adapters of
the tower are meant, name the parts: `parts: [language, vision, projector]`.

## Options

None.

## Source

PEFT 0.21 `tuners/tuners_utils.py` (`_maybe_include_all_linear_layers`, `check_target_module_exists`); traced steps of
Qwen2-VL: docs/internals/models-and-gpus.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.autograd.context import Adapter, adapts
from memcheck.models.parameters import tower_runs
from memcheck.plan.finding import Finding
from memcheck.rules import REVIEW
from memcheck.rules.types import Rule, RuleContext


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for targets that reach other parts than the language model without a word of it."""
    job, a = context.training, context.architecture
    if job is None or a is None or a.vision is None or job.lora is None or job.lora.parts:
        return
    lora = job.lora
    reached: dict[str, int] = {}
    for tensors, times, part in tower_runs(a):
        adapter = Adapter(rank=lora.rank, targets=lora.targets_in(part), dtype=lora.dtype)
        count = sum(t.linear and adapts(adapter, t.name.removesuffix(".weight")) for t in tensors)
        if count and part != "audio":
            reached[part] = reached.get(part, 0) + times * count
    if not reached:
        return
    names = {"vision": "vision tower"}
    found = " and ".join(f"{count} linear layers of the {names.get(p, p)}" for p, count in reached.items())
    yield RULE.finding(
        context,
        f"adapters reach {found}, whose activations are then kept for every patch",
        "/training/lora/target_modules",
        help="keep PEFT out of them (`exclude_modules`) and write `lora: {parts: [language]}`, or name the parts meant",
        related=(("the model", "/model"),),
    )


RULE = Rule(
    code="MEM418",
    name="adapters-reach-tower",
    severity="warning",
    summary="LoRA targets reach the vision tower, too, and the plan does not say that they shall.",
    doc=__doc__,
    check=check,
    profile=REVIEW,
)
