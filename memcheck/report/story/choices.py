"""What could be done: remedies, and other GPUs."""

from __future__ import annotations

from memcheck.dossier.types import OnGpu
from memcheck.finding import Remedy
from memcheck.memory.types import Estimate
from memcheck.report.details import stated
from memcheck.report.story.blocks import Bar, Card, Cards, Chart, Prose, Scale, Section, Segment, Step, Steps
from memcheck.report.story.verdict import memory_verdict
from memcheck.report.text import gib, percent, plural, value
from memcheck.result import PlanResult


def all_remedies(plan: PlanResult) -> tuple[Remedy, ...]:
    """Those of all findings, each once."""
    found: list[Remedy] = []
    for finding in plan.findings:
        found += [remedy for remedy in finding.remedies if remedy not in found]
    return tuple(found)


def advice(plan: PlanResult) -> str:
    """The cheapest remedy in a sentence."""
    found = all_remedies(plan)
    if not found or plan.estimate is None:
        return ""
    first = found[0]
    shares = f"{percent(plan.estimate.utilization)} to {percent(first.utilization)}"
    return f"Cheapest change that helps: {arrows(first.title)}. Memory goes from {shares}, {time_of(first)}."


def arrows(title: str) -> str:
    """A remedy's title as it is printed."""
    return title.replace("->", "→")


def time_of(remedy: Remedy) -> str:
    """What it does to the time of a step, by the model of costs."""
    if remedy.slowdown is None:
        return "how long the work takes is not known"
    if abs(remedy.slowdown) < 0.005:
        return "the work takes as long"
    return f"the work takes about {abs(remedy.slowdown):.0%} {'longer' if remedy.slowdown > 0 else 'less'}"


def remedies(plan: PlanResult, estimate: Estimate) -> Section | None:
    """Every remedy with its bars, the cheapest first."""
    found = all_remedies(plan)
    if not found:
        return None
    axis = Scale(max(estimate.capacity_bytes, estimate.device_bytes), estimate.capacity_bytes)
    note = "Each is priced by the same model as the plan, cheapest first. Times are a model's, not measured."
    steps = tuple(one_step(plan, estimate, remedy, axis) for remedy in found)
    return Section("remedies", "What would help", (Prose(note), Steps(steps)))


def one_step(plan: PlanResult, estimate: Estimate, remedy: Remedy, axis: Scale) -> Step:
    """Both bars are shares of the capacity that they are held against, which other hardware changes."""
    capacity = estimate.capacity_bytes
    after = int(remedy.utilization * capacity)
    fits = remedy.utilization <= min(plan.fail_above, 1.0)
    before = Bar("now", (Segment("bad", estimate.device_bytes),), percent(estimate.utilization))
    then = Bar("then", (Segment("good" if fits else "warn", after),), percent(remedy.utilization))
    title = f"{before.figure} of the capacity now, {then.figure} then ({gib(remedy.device_bytes)} GiB)"
    changes = tuple((key, value(stated(plan, key)), value(new)) for key, new in remedy.set.items())
    return Step(arrows(remedy.title), changes, costs(remedy), Chart(title, (before, then), axis))


def costs(remedy: Remedy) -> tuple[tuple[str, str], ...]:
    """What is given for the memory."""
    tone = "note" if remedy.slowdown is None else "warn" if remedy.slowdown >= 0.005 else "good"
    found = [(tone, time_of(remedy))]
    if remedy.safe:
        return (*found, ("good", "same results"))
    hardware = any(key.startswith("hardware.") for key in remedy.set)
    return (*found, ("note", "other hardware") if hardware else ("warn", "changes results"))


def gpus(plan: PlanResult) -> Section | None:
    """The plan on its own GPU and on others."""
    if plan.dossier is None:
        return None
    own, *others = plan.dossier.gpus
    cards = (card(plan, own, "as planned"), *(card(plan, each) for each in others))
    note = f"The same plan on {plural(plan.gpus, 'GPU')} of another kind. TFLOPS are dense bf16, as the maker states."
    if any(each.relative_speed for each in others):
        note += " Speeds are a roofline model's: they rank, and nobody has measured them."
    return Section("gpus", "On other GPUs", (Prose(note), Cards(cards)))


def card(plan: PlanResult, there: OnGpu, note: str = "") -> Card:
    """One GPU."""
    rates = [f"{there.bf16_tflops:,.0f} TFLOPS"] if there.bf16_tflops else []
    rates += [f"{there.relative_speed:.2g}× the speed"] if there.relative_speed and not note else []
    has = f"{gib(there.capacity_bytes)} GiB"
    if there.refused:
        return Card(there.gpu, "Not possible", "bad", tuple(filter(None, (there.refused, has, *rates, note))))
    found = memory_verdict(there.device_bytes, there.interval_high_bytes, there.capacity_bytes, plan.fail_above)
    needs = f"{gib(there.device_bytes)} of {has}"
    share = percent(there.utilization)
    bar = Bar("", (Segment(found.tone, there.device_bytes),), share)
    axis = Scale(max(there.capacity_bytes, there.device_bytes), there.capacity_bytes)
    chart = Chart(f"{share} of {there.gpu}", (bar,), axis)
    return Card(there.gpu, found.word, found.tone, tuple(filter(None, (needs, *rates, note))), share, chart)
