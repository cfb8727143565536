"""Up to which row a plan fits whose rows are not packed, where it does not fit at ``sequence_length``, their limit."""

from __future__ import annotations

import os

from memcheck.accounts.estimate import Estimate
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.defaults import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.memory.fit import FITS, gpu_fit
from memcheck.rules.types import RuleContext
from memcheck.rules.when import rows_have_limit

SHORT = 64
"""Tokens of a row that is short for any text: a plan that does not fit with it does not fit."""
STEP = 8
"""Tokens: the answer is rounded down to a multiple of this, on each rank that cuts rows."""


def with_longest(context: RuleContext, answer: Estimate) -> Estimate:
    """The estimate with the longest row that fits; as it is, where rows are full or even a short one does not fit."""
    job = context.training
    if job is None or not rows_have_limit(context):
        return answer
    step = STEP * job.layout.context * job.layout.tensor
    fits, above = -(-SHORT // step), -(-job.sequence_length // step)
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
    """Whether the whole interval of the need fits if no row is longer."""
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
