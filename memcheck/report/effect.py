"""What a remedy does to the memory that fails its plan, and what it costs: in words for every report."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.text import gib, percent
from memcheck.finding import CHEAP, OTHER_HARDWARE, OTHER_RESULT, ROOMY, SAME_RESULT, Remedy
from memcheck.memory.fit import UNCERTAIN, gpu_fit, on_host
from memcheck.record import Record
from memcheck.report.verdict import short_of_host
from memcheck.result import PlanResult

SERVED = frozenset({"inference.batch_size", "inference.context_length"})
"""Keys of what is served, which remedies only lower."""
SHARE, HOST, HIGH = "of capacity", "host GiB", "up to"
PURPOSES = {CHEAP: "least time", ROOMY: "leaves room"}
"""What a remedy is for, by its role."""
ASKS = {
    SAME_RESULT: "same hardware, same result",
    OTHER_RESULT: "same hardware, other result",
    OTHER_HARDWARE: "other hardware",
}
"""What the remedies of a group ask for."""
UNNOTICED = 0.005
"""Relative times below this are no difference that a whole percentage could show."""
NAMED_HOST_BYTES = 2**30
"""Growth of host memory from which on it is part of a remedy's price."""


class Measure(Record):
    """A figure of a plan, before and after a remedy."""

    name: str
    """:data:`SHARE`, :data:`HOST` or :data:`HIGH`."""
    before: str
    """Empty where the plan has no estimate."""
    after: str


def measures(plan: PlanResult, remedy: Remedy) -> tuple[Measure, ...]:
    """The figures that a remedy moves, the one that fails the plan first.

    Host memory comes first where a node lacks it, the upper end of the interval where only that is too much. The share
    of a GPU's memory is always the last.
    """
    if plan.estimate is None:
        return (Measure(SHARE, "", percent(remedy.utilization)),)
    share = Measure(SHARE, percent(plan.estimate.utilization), percent(remedy.utilization))
    if short_of_host(plan):
        return Measure(HOST, gib(plan.estimate.host_bytes_per_node), gib(remedy.host_bytes_per_node)), share
    if gpu_fit(plan.estimate, plan.fail_above) != UNCERTAIN:
        return (share,)
    return Measure(HIGH, percent(high_utilization(plan.estimate)), percent(remedy.high_utilization)), share


def effects(plan: PlanResult, remedy: Remedy, arrow: str = "->") -> tuple[tuple[str, str], ...]:
    """The name of every measure, and its figures before and after in one text."""
    found = measures(plan, remedy)
    return tuple((each.name, f"{each.before} {arrow} {each.after}" if each.before else each.after) for each in found)


def high_utilization(estimate: Estimate) -> float:
    """The upper end of the interval over the capacity."""
    return estimate.needed_interval_bytes[1] / estimate.capacity_bytes if estimate.capacity_bytes else 0.0


def effect(plan: PlanResult, remedy: Remedy, arrow: str = "->") -> str:
    """On one line: ``206.7% -> 62.1%``, or ``host 2,102.66 -> 262.83 GiB, GPU 80.1% -> 80.1%``.

    Of a plan that is uncertain: ``up to 103.2% -> 95.1%, predicted 88.0% -> 81.0%``.
    """
    found = effects(plan, remedy, arrow)
    if len(found) == 1:
        return found[0][1]
    (what, first), (_, share) = found
    return f"host {first} GiB, GPU {share}" if what == HOST else f"{what} {first}, predicted {share}"


def mends(plan: PlanResult, remedy: Remedy) -> bool:
    """Whether the changed plan stays within its limits on the GPU and in the node."""
    within = remedy.utilization <= min(plan.fail_above, 1.0)
    return within and on_host(remedy.host_bytes_per_node, plan.host_capacity_bytes)


def time(slowdown: float | None) -> str:
    """``+18%``, ``+2,534%``, ``0%`` where a whole percentage shows no difference, ``unknown``."""
    if slowdown is None:
        return "unknown"
    told = f"{slowdown:+,.0%}"
    return "0%" if abs(slowdown) < UNNOTICED or told == "-0%" else told


def beside_time(remedy: Remedy) -> tuple[str, ...]:
    """What a remedy is for, then what it takes as well as time."""
    return (*((PURPOSES[remedy.role],) if remedy.role in PURPOSES else ()), *taken(remedy))


def taken(remedy: Remedy) -> tuple[str, ...]:
    """What a remedy takes as well as time: hardware, results, answers of a server, certainty."""
    found = []
    if not SERVED.isdisjoint(remedy.set):
        found.append("serves less")
    elif remedy.group != SAME_RESULT:
        found.append("other hardware" if remedy.group == OTHER_HARDWARE else "other results")
    if not remedy.sure:
        found.append("uncertain")
    return tuple(found)


def cost(remedy: Remedy) -> str:
    """``+18%, other results``."""
    return ", ".join((time(remedy.slowdown), *beside_time(remedy)))


def on_the_host(plan: PlanResult, remedy: Remedy) -> str:
    """Host memory that is paid for room on the GPU; empty where a remedy takes no more of it."""
    before = plan.estimate.host_bytes_per_node if plan.estimate is not None else 0
    if short_of_host(plan) or remedy.host_bytes_per_node < before + NAMED_HOST_BYTES:
        return ""
    return f"a node then needs {gib(remedy.host_bytes_per_node)} GiB of host memory"
