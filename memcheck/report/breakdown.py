"""``memcheck estimate``: where the memory of one plan goes, and when."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import Screen
from memcheck.report import text
from memcheck.report.story import PlanHead, Prose
from memcheck.report.story.blocks import Block
from memcheck.report.story.grounds import arithmetic, assumed, totals
from memcheck.report.story.memory import host_ledger, largest, ledger, rank_peaks, timeline
from memcheck.result import PlanResult


def breakdown(plan: PlanResult, estimate: Estimate, screen: Screen, *, formulas: bool) -> str:
    """Ledger, peak, timeline, ranks, largest tensors, assumptions and, if asked for, the formulas."""
    groups: list[tuple[Block | None, ...]] = [
        (PlanHead(plan.name, plan.path), Prose(job(plan, estimate))),
        (ledger(plan, estimate),),
        (host_ledger(plan),),
        (totals(plan, estimate),),
        (timeline(estimate),),
        (rank_peaks(estimate),),
        (largest(estimate.largest),),
        (assumed(plan),),
        (arithmetic(estimate) if formulas else None,),
    ]
    return text.document(groups, screen) + "\n"


def job(plan: PlanResult, estimate: Estimate) -> str:
    """The model with its parameters, the GPUs and the framework."""
    where = f"{plan.gpus:,} x {plan.gpu}" if plan.gpus else plan.gpu
    trainable = estimate.trainable_parameters
    count = f"{estimate.parameters:,} parameters"
    if trainable and trainable != estimate.parameters:
        count += f", {trainable:,} trained"
    return ", ".join(part for part in (plan.model, count, where, plan.framework) if part)
