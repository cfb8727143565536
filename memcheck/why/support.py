"""How much of the evidence speaks for one wrong number of a plan, beyond amounts: the phase and the failed tensor.

Each candidate is a plan that the engine has estimated. It dies in the first phase whose peak the GPU does not hold, and
its ledger has the tensors that are made there. A candidate that dies in another phase than the run, or that makes no
tensor of the size that failed, is less likely than one that does.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate, RankEstimate
from memcheck.record import Record

CLOSE = 0.03
"""Share by which predictions of allocated bytes are off."""


class Observed(Record):
    """What a message says beyond the size of the GPU."""

    phase: str | None
    floor_bytes: int | None
    """Live bytes and those asked for; None where the message does not print them."""
    bounds: tuple[int, int] | None
    """Smallest and largest bytes of the tensor that failed; None where the figure names none."""


def support(observed: Observed, plan: Estimate, candidate: Estimate) -> float:
    """Points for a candidate; at least :data:`ENOUGH` if the phase and the tensor speak for it and not for the plan."""
    points = _of_phase(observed, candidate) + _of_tensor(observed, plan, candidate)
    peak = _peak_in(observed.phase, candidate)
    if observed.floor_bytes:
        points -= min(1.0, abs(peak - observed.floor_bytes) / observed.floor_bytes)
    return points


ENOUGH = 2.5


def _rank(estimate: Estimate) -> RankEstimate:
    return next(r for r in estimate.ranks if r.pipeline_rank == estimate.pipeline_rank)


def _peak_in(phase: str | None, estimate: Estimate) -> int:
    found = [i.allocated_bytes for i in _rank(estimate).instants if i.name == phase]
    return max(found, default=estimate.allocated_bytes)


def _of_phase(observed: Observed, candidate: Estimate) -> float:
    """1.5 if the candidate dies in the phase of the run, -1.5 if in another, 0 where a phase is not known."""
    instants = _rank(candidate).instants
    if observed.phase not in [i.name for i in instants] or not observed.floor_bytes:
        return 0.0 if observed.phase in ("forward", "loss", "backward", None) else -1.5
    floor = observed.floor_bytes
    for instant in instants:
        if instant.name == observed.phase:
            return 1.5 if instant.allocated_bytes >= floor * (1 - CLOSE) else -1.5
        if instant.allocated_bytes >= floor * (1 + CLOSE):
            return -1.5
    return 0.0


def _of_tensor(observed: Observed, plan: Estimate, candidate: Estimate) -> float:
    """2 if only the candidate makes a tensor of the size that failed, -1 if only the plan as stated does."""
    if observed.bounds is None:
        return 0.0
    here, there = _makes(observed.bounds, candidate), _makes(observed.bounds, plan)
    if here == there:
        return 0.0 if here else -0.5
    return 2.0 if here else -1.0


def _makes(bounds: tuple[int, int], estimate: Estimate) -> bool:
    low, high = bounds
    return any(low <= row.bytes // row.copies <= high for row in _rank(estimate).ledger if row.copies)
