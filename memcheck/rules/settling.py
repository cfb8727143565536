"""What would settle a plan: a fact that an uncertain plan leaves out, or the longest row that fits unpacked."""

from __future__ import annotations

import os

from memcheck.accounts.estimate import Estimate
from memcheck.autograd.tensor import ceil_div
from memcheck.edge.screen import between, value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.memory.fit import FITS, UNCERTAIN, gpu_fit, verdict_of
from memcheck.memory.overhead_terms import interval_basis
from memcheck.rules.grounds import grounds, priced_with, tried, unplaced
from memcheck.rules.mem702_boot_depends import SETTLE
from memcheck.rules.types import RuleContext
from memcheck.rules.when import rows_have_limit

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
    if now.engine is not None:
        return next((SETTLE[name] for name in now.engine.depends_on), "")
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


SHORT = 64
"""Tokens of a row that is short for any text: a plan that does not fit with it does not fit."""
STEP = 8
"""Tokens: the answer is rounded down to a multiple of this, on each rank that cuts rows."""


def with_longest(context: RuleContext, answer: Estimate) -> Estimate:
    """Return the estimate with the longest row that fits; as it is, where rows are full or even a short one does not
    fit.
    """
    job = context.training
    if job is None or not rows_have_limit(context):
        return answer
    step = STEP * job.layout.context * job.layout.tensor
    fits, above = ceil_div(SHORT, step), ceil_div(job.sequence_length, step)
    if fits >= above or not _fits(context, fits * step):
        return answer
    while above - fits > 1:
        middle = (fits + above) // 2
        if _fits(context, middle * step):
            fits = middle
        else:
            above = middle
    return answer._replace(longest_row=fits * step)


def _fits(context: RuleContext, tokens: int) -> bool:
    """Say whether the whole interval of the need fits if no row is longer."""
    plan = context.plan
    training = plan.training
    if training is None:
        return False
    shorter = plan._replace(training=training._replace(longest_row=tokens))
    try:
        found = resolve(shorter, FRAMEWORKS, base_dir=os.path.dirname(context.document.path))
        answer = estimate(found.job, found.gpu, found.overhead, every_rank=False)
    except (ResolutionError, UnsupportedError):  # pictures take more than such a row
        return False
    return gpu_fit(answer, context.fail_above) == FITS
