"""The answer for one plan, in a word and in a sentence."""

from __future__ import annotations

from memcheck.memory.types import Estimate
from memcheck.report.story.blocks import Verdict
from memcheck.report.text import gib, percent, plural
from memcheck.result import PlanResult

FITS, UNCERTAIN, TOO_BIG, ABOVE = "Fits", "Uncertain", "Does not fit", "Above the limit"


def memory_verdict(device: int, high: int, capacity: int, fail_above: float) -> Verdict:
    """What the figures alone say: of a plan, and of the same plan on another GPU."""
    if device > capacity:
        return Verdict(TOO_BIG, "bad")
    if device > capacity * fail_above:
        return Verdict(ABOVE, "bad")
    return Verdict(UNCERTAIN, "warn") if high > capacity else Verdict(FITS, "good")


def verdict(plan: PlanResult, *, judged: bool = True) -> Verdict:
    """What the figures and, where they are shown, the findings say together."""
    estimate = plan.estimate
    if estimate is None:
        return Verdict("Not estimated", "bad")
    found = memory_verdict(estimate.device_bytes, estimate.interval_bytes[1], estimate.capacity_bytes, plan.fail_above)
    if not judged or found.tone == "bad" or (plan.status == "passed" and not plan.count("warning")):
        return found
    if plan.status != "passed":
        return Verdict("Fails the check", "bad")
    return Verdict("Fits, with a warning" if found.word == FITS else found.word, "warn")


def lead(plan: PlanResult) -> str:
    """The answer in a sentence."""
    estimate = plan.estimate
    if estimate is None:
        return f"{plural(plan.count('error'), 'error')} to mend before the memory of this plan can be predicted."
    return memory_lead(plan, estimate)


def memory_lead(plan: PlanResult, estimate: Estimate) -> str:
    """What is needed, what there is, what is left or missing."""
    need, capacity = estimate.device_bytes, estimate.capacity_bytes
    gpu = plan.gpu or "GPU"
    if need > capacity:
        return (
            f"Needs {gib(need)} GiB on each {gpu}, which has {gib(capacity)} GiB: {gib(need - capacity)} GiB too much."
        )
    sentence = f"Needs {gib(need)} of the {gib(capacity)} GiB of each {gpu}: {gib(capacity - need)} GiB are left."
    if need > capacity * plan.fail_above:
        return f"{sentence} That is more than the {percent(plan.fail_above)} that the plan may use."
    if estimate.interval_bytes[1] > capacity:
        return f"{sentence} The upper end of the 95% interval, {gib(estimate.interval_bytes[1])} GiB, does not fit."
    return sentence
