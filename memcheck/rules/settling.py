"""What would settle whether an uncertain plan fits: one fact that a launch knows and the plan leaves out."""

from __future__ import annotations

from memcheck.edge.text import between, value
from memcheck.memory.basis import interval_basis
from memcheck.memory.fit import FITS, UNCERTAIN, verdict_of
from memcheck.rules.grounds import grounds, priced_with, tried, unplaced
from memcheck.rules.types import RuleContext

ROWS = "training.sequences"
FACTS = frozenset(
    {
        "training.expandable_segments",
        "training.attention",
        "training.loss.keep_logits",
        "training.optimizer.implementation",
        "parallelism.gradient_sync",
        "training.options.fsdp_version",
        "training.options.prepare_model_for_kbit_training",
        "training.loss.upcast",
        "training.clip_grad_norm",
    }
)
"""What a launch settles that a plan seldom states: to state it asks for no other training."""


def settled_by(context: RuleContext, known: frozenset[str]) -> str:
    """The one fact that would settle whether an uncertain plan fits, or that only a run can tell; empty for others."""
    now = context.estimate
    if now is None or verdict_of(now, context.fail_above) != UNCERTAIN:
        return ""
    if now.padded_bytes:
        packed = priced_with(context, unplaced(context), known, {ROWS: "packed"})
        if packed is not None and verdict_of(packed, context.fail_above) == FITS:
            return f"state `{ROWS}`: with `packed` the plan fits, {between(packed.needed_interval_bytes)} GiB"
    for ground, there in grounds(context, known, [key for key in tried(context) if key in FACTS]):
        if verdict_of(there, context.fail_above) == FITS:
            key, other = f"`{ground.key}: {value(ground.other)}`", between(there.needed_interval_bytes)
            return f"state {key}: the plan assumes `{value(ground.value)}`, and with {key} it fits, {other} GiB"
    _, cases = interval_basis(context.job)
    return f"run a step: no key decides it; the interval is as wide as the errors of {cases} measured runs"
