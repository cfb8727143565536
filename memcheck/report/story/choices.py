"""What could be done: remedies, and other GPUs."""

from __future__ import annotations

from memcheck.accounts.dossier import OnGpu
from memcheck.accounts.estimate import Estimate
from memcheck.edge.text import gib, percent, plural, value
from memcheck.finding import GROUPS, HARDWARE, Remedy
from memcheck.memory.fit import UNCERTAIN, gpu_fit, on_host, verdict_in
from memcheck.memory.fit import on_gpu as gpu_verdict
from memcheck.report.details import stated
from memcheck.report.effect import ASKS, PURPOSES, beside_time, high_utilization, on_the_host
from memcheck.report.story.blocks import (
    Bar,
    Card,
    Cards,
    Chart,
    Prose,
    RemedyStep,
    RemedySteps,
    Scale,
    Section,
    Segment,
)
from memcheck.report.verdict import GPU_TONES, Verdict, said, short_of_host, verdict
from memcheck.result import PlanResult

TONES_OF = {HARDWARE: "note", **dict.fromkeys(PURPOSES.values(), "good")}


def all_remedies(plan: PlanResult) -> tuple[Remedy, ...]:
    """The remedies of all findings of a plan, each once, in the order of ``GROUPS``: what they ask for besides time."""
    found: list[Remedy] = []
    for finding in plan.findings:
        found += [remedy for remedy in finding.remedies if remedy not in found]
    return tuple(sorted(found, key=lambda remedy: GROUPS.index(remedy.group)))


def advice(plan: PlanResult) -> str:
    """The first remedy in a sentence, with what it asks for."""
    found = all_remedies(plan)
    if not found or plan.estimate is None:
        return ""
    first, then = found[0], []
    if short_of_host(plan):
        now, after = gib(plan.estimate.host_bytes_per_node), gib(first.host_bytes_per_node)
        then.append(f"Host memory of a node goes from {now} to {after} GiB")
    elif gpu_fit(plan.estimate, plan.fail_above) == UNCERTAIN:
        now, after = percent(high_utilization(plan.estimate)), percent(first.high_utilization)
        then.append(f"It then needs up to {after} of the capacity instead of {now}")
    now, after = percent(plan.estimate.utilization), percent(first.utilization)
    gpu = "GPU memory" if then else "Memory"
    then.append(f"{gpu} stays at {now}" if now == after else f"{gpu} goes from {now} to {after}")
    close = "" if first.sure else " It is uncertain whether the plan then fits."
    asks = ASKS[first.group].capitalize()
    return f"{asks}: {arrows(first.title)}. {', '.join(then)}, {time_of(first)}.{close}"


def arrows(title: str) -> str:
    """A remedy's title as it is printed."""
    return title.replace("->", "→")


def time_of(remedy: Remedy) -> str:
    """A remedy's effect on the time of the work, in words. The time is modelled, not measured."""
    if remedy.slowdown is None:
        return "how long the work takes is not known"
    if abs(remedy.slowdown) < 0.005:
        return "a step takes the same time"
    return f"the work takes about {abs(remedy.slowdown):.0%} {'longer' if remedy.slowdown > 0 else 'less'}"


def remedies(plan: PlanResult, estimate: Estimate) -> Section | None:
    """Every remedy with its bars, by what it asks for."""
    found = all_remedies(plan)
    if not found:
        return None
    axis = Scale(max(estimate.capacity_bytes, estimate.needed_bytes), estimate.capacity_bytes)
    note = "Each change is estimated by the same model as the plan. Times are a model's, not measured."
    groups: list[RemedySteps] = []
    for group in GROUPS:
        steps = tuple(one_step(plan, estimate, remedy, axis) for remedy in found if remedy.group == group)
        if steps:
            first = 1 + sum(len(each.steps) for each in groups)
            groups.append(RemedySteps(steps, title=ASKS[group].capitalize(), first=first))
    return Section("remedies", "What would help", (Prose(note), *groups))


def one_step(plan: PlanResult, estimate: Estimate, remedy: Remedy, axis: Scale) -> RemedyStep:
    """A remedy's changed keys, its costs, and the memory before and after: a GPU's, and a node's where that is too
    small.
    """
    changes = tuple((key, value(stated(plan, key)), value(new)) for key, new in remedy.set.items())
    charts: tuple[Chart, ...]
    if short_of_host(plan):
        charts = (on_node(plan, estimate, remedy), on_gpu(plan, estimate, remedy, axis, "GPU "))
    elif gpu_fit(estimate, plan.fail_above) == UNCERTAIN:
        ends = upper_end(estimate, remedy)
        charts = (ends, on_gpu(plan, estimate, remedy, ends.scale, "predicted "))
    else:
        charts = (on_gpu(plan, estimate, remedy, axis, ""),)
    return RemedyStep(title=arrows(remedy.title), changes=changes, costs=costs(plan, remedy), charts=charts)


def on_gpu(plan: PlanResult, estimate: Estimate, remedy: Remedy, axis: Scale, whose: str) -> Chart:
    """A GPU's memory now and with the remedy, as bars. Each is a share of its GPU's own capacity.

    ``whose``: the text before ``now`` and ``then`` in the labels.
    """
    after = int(remedy.utilization * estimate.capacity_bytes)
    here = GPU_TONES[gpu_fit(estimate, plan.fail_above)]
    fits = "bad" if remedy.utilization > min(plan.fail_above, 1.0) else "good" if remedy.sure else "warn"
    before = Bar(f"{whose}now", (Segment(here, estimate.needed_bytes),), percent(estimate.utilization))
    then = Bar(f"{whose}then", (Segment(fits, after),), percent(remedy.utilization))
    title = f"{before.figure} of the capacity now, {then.figure} then ({gib(remedy.needed_bytes)} GiB)"
    return Chart(title, (before, then), axis)


def upper_end(estimate: Estimate, remedy: Remedy) -> Chart:
    """The upper ends of the intervals now and with the remedy, each as a share of the capacity."""
    capacity, now = estimate.capacity_bytes, estimate.needed_interval_bytes[1]
    after = int(remedy.high_utilization * capacity)
    before = Bar("up to, now", (Segment("warn", now),), percent(high_utilization(estimate)))
    then = Bar("up to, then", (Segment("good" if remedy.sure else "warn", after),), percent(remedy.high_utilization))
    title = f"Up to {before.figure} of the capacity now, up to {then.figure} then"
    return Chart(title, (before, then), Scale(max(capacity, now, after), capacity))


def on_node(plan: PlanResult, estimate: Estimate, remedy: Remedy) -> Chart:
    """What the processes of a node hold at most, against what the plan says it has."""
    capacity, now, after = plan.host_capacity_bytes or 0, estimate.host_bytes_per_node, remedy.host_bytes_per_node
    before = Bar("host now", (Segment("bad", now),), f"{gib(now)} GiB")
    fits = on_host(after, capacity)
    then = Bar("host then", (Segment("good" if fits else "bad", after),), f"{gib(after)} GiB")
    title = f"{before.figure} of the {gib(capacity)} GiB of a node now, {then.figure} then"
    return Chart(title, (before, then), Scale(max(capacity, now, after), capacity))


def costs(plan: PlanResult, remedy: Remedy) -> tuple[tuple[str, str], ...]:
    """What is given for the memory."""
    tone = "note" if remedy.slowdown is None else "warn" if remedy.slowdown >= 0.005 else "good"
    found = [(tone, time_of(remedy))]
    for words in beside_time(remedy):
        told = {"other results": "changes results", "uncertain": "uncertain whether it fits"}.get(words, words)
        found.append((TONES_OF.get(words, "warn"), told))
    found += [("note", paid)] if (paid := on_the_host(plan, remedy)) else []
    return (*found, ("good", "same results")) if remedy.safe else tuple(found)


def gpus(plan: PlanResult, *, judged: bool) -> Section | None:
    """The plan on its own GPU and on others."""
    if plan.dossier is None:
        return None
    own, *others = plan.dossier.gpus
    here = verdict(plan, judged=judged)
    first = card(plan, own, "as planned", judged=judged)._replace(word=here.word, tone=here.tone)
    cards = (first, *(card(plan, each, judged=judged) for each in others))
    note = f"The same plan on {plural(plan.gpus, 'GPU')} of another kind. TFLOPS are dense bf16, as the maker states."
    if all(each.host_short for each in plan.dossier.gpus if not each.refused):
        note += " None of them gives a node more host memory, which is what fails."
    if any(each.relative_speed for each in others):
        note += " Speeds are a roofline model's: good for ranking, not measured."
    assumed = assumptions(others)
    told = (Prose(f"These speeds assume: {'; '.join(assumed)}."),) if assumed else ()
    return Section("gpus", "On other GPUs", (Prose(note), Cards(cards), *told))


def assumptions(others: list[OnGpu]) -> list[str]:
    """What speeds rest on, each once, with the GPUs that it is about."""
    found: dict[str, list[str]] = {}
    for each in others:
        for text in each.assumed:
            found.setdefault(text, []).append(each.gpu)
    return [f"{text} ({', '.join(names)})" for text, names in found.items()]


def card(plan: PlanResult, there: OnGpu, note: str = "", *, judged: bool = True) -> Card:
    """A card about the plan on one GPU of the catalog: whether the plan fits, the figures, and the GPU's rates."""
    rates = [f"{there.bf16_tflops:,.0f} TFLOPS"] if there.bf16_tflops else []
    rates += [f"{there.relative_speed:.2g}× the speed"] if there.relative_speed and not note else []
    has = f"{gib(there.capacity_bytes)} GiB"
    if there.refused:
        return Card(
            title=there.gpu,
            word="Not possible",
            tone="bad",
            lines=tuple(filter(None, (there.refused, has, *rates, note))),
        )
    found = verdict_on(plan, there, judged=judged)
    needs = f"{gib(there.needed_bytes)} of {has}"
    share = percent(there.utilization)
    bar = Bar("", (Segment(GPU_TONES[fit_on(plan, there)], there.needed_bytes),), share)
    axis = Scale(max(there.capacity_bytes, there.needed_bytes), there.capacity_bytes)
    chart = Chart(f"{share} of {there.gpu}", (bar,), axis)
    why = there.fails if found.fails else ""
    return Card(
        title=there.gpu,
        word=found.word,
        tone=found.tone,
        lines=tuple(filter(None, (needs, *rates, why, note))),
        figure=share,
        chart=chart,
    )


def fit_on(plan: PlanResult, there: OnGpu) -> str:
    """What the need says of the memory of that GPU."""
    return gpu_verdict(there.needed_bytes, there.needed_high_bytes, there.capacity_bytes, plan.fail_above)


def verdict_on(plan: PlanResult, there: OnGpu, *, judged: bool = True) -> Verdict:
    """The verdict on the plan with that GPU. What is hidden on its own GPU fails it on no other."""
    interval = there.needed_low_bytes, there.needed_high_bytes
    answer = verdict_in(interval, there.capacity_bytes, plan.fail_above)
    found = said(answer, fit_on(plan, there), host=not there.host_short)
    accepted = {hidden.finding.code for hidden in plan.hidden}
    fails = judged and there.fails and there.fails.partition(":")[0] not in accepted
    return found.failing() if fails and found.tone != "bad" else found
