"""What could be done: remedies with their costs, and the same plan on other GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.dossier import OnGpu
from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import clean, gib, percent, plural, value
from memcheck.memory.fit import UNCERTAIN, gpu_fit, on_gpu, on_host, verdict_in
from memcheck.plan.finding import (
    CHEAP,
    GROUPS,
    HARDWARE,
    OTHER_HARDWARE,
    OTHER_RESULT,
    ROOMY,
    SAME_RESULT,
    Finding,
    Remedy,
)
from memcheck.report.story import Prose
from memcheck.report.story.blocks import (
    Bar,
    Card,
    Cards,
    Chart,
    Cost,
    KeyChange,
    Measure,
    Remedies,
    RemedyStep,
    Scale,
    Section,
    Segment,
    Verdict,
)
from memcheck.report.verdict import GPU_TONES, failed, said, short_of_host, verdict
from memcheck.rules.result import PlanResult

SERVED = frozenset({"inference.batch_size", "inference.context_length", "inference.max_model_len"})
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
IN_SENTENCES = {"other results": "changes results", "uncertain": "uncertain whether it fits"}
UNNOTICED = 0.005
"""Relative times below this are no difference that a whole percentage could show."""
NAMED_HOST_BYTES = 2**30
"""Growth of host memory from which on it is part of a remedy's price."""
SHORT_FORMS = ("mode", "name", "kind", "recipe", "parameters", "rank")
"""The field that a key stands for when it is written as one word."""
SILENT: dict[str, object] = {
    "parallelism.tensor": 1,
    "parallelism.context": 1,
    "parallelism.pipeline": 1,
    "parallelism.virtual_stages": 1,
    "parallelism.expert": 1,
    "parallelism.zero_stage": 0,
}
"""What a plan means that does not write a degree: the defaults of its schema, which are no assumptions."""


def all_remedies(plan: PlanResult) -> tuple[Remedy, ...]:
    """The remedies of all findings of a plan, each once, in the order of :data:`GROUPS`."""
    found: list[Remedy] = []
    for finding in plan.findings:
        found += [remedy for remedy in finding.remedies if remedy not in found]
    return tuple(sorted(found, key=lambda remedy: GROUPS.index(remedy.group)))


def section(plan: PlanResult, estimate: Estimate) -> Section | None:
    """Every remedy of a plan, with its bars."""
    found = all_remedies(plan)
    if not found:
        return None
    note = "Each change is estimated by the same model as the plan. Times are a model's, not measured."
    steps = tuple(step(plan, remedy)._replace(charts=charts(plan, estimate, remedy)) for remedy in found)
    return Section("remedies", "What would help", (Prose(note), Remedies("remedy-list", "", steps)))


def offered(plan: PlanResult, options: Sequence[Remedy], layout: str) -> Remedies:
    """The remedies of one finding, in the order of the finding. ``layout``: ``short`` or ``long``."""
    steps = tuple(step(plan, remedy) for remedy in options)
    return Remedies("remedy-list", "remedies, each re-computed", steps, more="{} more with -v", layout=layout)


def step(plan: PlanResult, remedy: Remedy) -> RemedyStep:
    """A remedy's changed keys, its effect and its costs."""
    changes = tuple(
        change(plan, remedy, key, new)
        for key, new in remedy.set.items()
        if remedy.written is None or remedy.written.get(key) != ""
    )
    moved = measures(plan, remedy)
    paid = on_the_host(plan, remedy)
    purpose = PURPOSES.get(remedy.role, "")
    return RemedyStep(
        id=f"remedy-{slug(remedy)}",
        title=remedy.title.replace("->", "→"),
        group=remedy.group,
        asks=ASKS[remedy.group],
        changes=changes,
        measures=moved,
        effect=effect(moved),
        time=time(remedy.slowdown),
        purpose=purpose,
        takes=taken(remedy),
        paid=paid,
        costs=costs(remedy, paid),
        tone="good" if ends_the_finding(plan, remedy) else "warn",
        edits=remedy.files(plan.path),
    )


def change(plan: PlanResult, remedy: Remedy, key: str, new: object) -> KeyChange:
    """One changed key. In a remedy of a framework's own config it is said as that config says it, where it can."""
    before, after, written = value(stated(plan, key)), value(new), ""
    if remedy.written is not None:
        written = remedy.written.get(key, f"{key}: {before} -> {after} (a key of plans)")
    return KeyChange(key=key, before=before, after=after, value=new, written=written)


def slug(remedy: Remedy) -> str:
    """A name of the change that stays while the change does: ``zero_stage-3``."""
    text = "_and_".join(f"{key.rpartition('.')[2]}-{value(new)}" for key, new in remedy.set.items())
    return "".join(char if char.isalnum() or char in "_.-" else "-" for char in text).strip("-") or "change"


def measures(plan: PlanResult, remedy: Remedy) -> tuple[Measure, ...]:
    """The figures that a remedy moves, the one that fails the plan first.

    Host memory comes first where a node lacks it, the upper end of the interval where only that is too much. The share
    of a GPU's memory is always the last.
    """
    if plan.estimate is None:
        return (Measure(name=SHARE, title=SHARE, before="", after=percent(remedy.utilization)),)
    share = Measure(
        name=SHARE, title=SHARE, before=percent(plan.estimate.utilization), after=percent(remedy.utilization)
    )
    if short_of_host(plan):
        return Measure(
            name=HOST, title=HOST, before=gib(plan.estimate.host_bytes_per_node), after=gib(remedy.host_bytes_per_node)
        ), share
    if gpu_fit(plan.estimate, plan.fail_above) != UNCERTAIN:
        return (share,)
    before, after = percent(high_utilization(plan.estimate)), percent(remedy.high_utilization)
    return Measure(name=HIGH, title="interval up to", before=before, after=after), share


def high_utilization(estimate: Estimate) -> float:
    """The upper end of the interval over the capacity."""
    return estimate.needed_interval_bytes[1] / estimate.capacity_bytes if estimate.capacity_bytes else 0.0


def moved(measure: Measure) -> str:
    """The figure before and after: ``206.7% -> 62.1%``."""
    return f"{measure.before} -> {measure.after}" if measure.before else measure.after


def effect(found: Sequence[Measure]) -> str:
    """On one line: ``206.7% -> 62.1%``, or ``host 2,102.66 -> 262.83 GiB, GPU 80.1% -> 80.1%``.

    Of a plan that is uncertain: ``up to 103.2% -> 95.1%, predicted 88.0% -> 81.0%``.
    """
    first, *others = found
    if not others:
        return moved(first)
    share = moved(others[0])
    if first.name == HOST:
        return f"host {moved(first)} GiB, GPU {share}"
    return f"{first.name} {moved(first)}, predicted {share}"


def ends_the_finding(plan: PlanResult, remedy: Remedy) -> bool:
    """Whether the changed plan stays within its limits on the GPU and in the node."""
    within = remedy.utilization <= min(plan.fail_above, 1.0)
    return within and on_host(remedy.host_bytes_per_node, plan.host_capacity_bytes)


def time(slowdown: float | None) -> str:
    """``+18%``, ``+2,534%``, ``0%`` where a whole percentage shows no difference, ``unknown``."""
    if slowdown is None:
        return "unknown"
    told = f"{slowdown:+,.0%}"
    return "0%" if abs(slowdown) < UNNOTICED or told == "-0%" else told


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


def price(each: RemedyStep) -> str:
    """The time, the purpose and what else a change takes: ``+18%, other results``."""
    return ", ".join(filter(None, (each.time, each.purpose, *each.takes)))


def on_the_host(plan: PlanResult, remedy: Remedy) -> str:
    """Host memory that is paid for room on the GPU; empty where a remedy takes no more of it."""
    before = plan.estimate.host_bytes_per_node if plan.estimate is not None else 0
    if short_of_host(plan) or remedy.host_bytes_per_node < before + NAMED_HOST_BYTES:
        return ""
    return f"a node then needs {gib(remedy.host_bytes_per_node)} GiB of host memory"


def costs(remedy: Remedy, paid: str) -> tuple[Cost, ...]:
    """The costs of a remedy, each as its tone and its words."""
    tones = {HARDWARE: "note", **dict.fromkeys(PURPOSES.values(), "good")}
    tone = "note" if remedy.slowdown is None else "warn" if remedy.slowdown >= UNNOTICED else "good"
    found = [Cost(tone, time_of(remedy))]
    told = filter(None, (PURPOSES.get(remedy.role, ""), *taken(remedy)))
    found += [Cost(tones.get(words, "warn"), IN_SENTENCES.get(words, words)) for words in told]
    found += [Cost("note", paid)] if paid else []
    return (*found, Cost("good", "same results")) if remedy.safe else tuple(found)


def time_of(remedy: Remedy) -> str:
    """A remedy's effect on the time of the work, in words. The time is modelled, not measured."""
    if remedy.slowdown is None:
        return "how long the work takes is not known"
    if abs(remedy.slowdown) < UNNOTICED:
        return "a step takes the same time"
    return f"the work takes about {abs(remedy.slowdown):.0%} {'longer' if remedy.slowdown > 0 else 'less'}"


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
    title = first.title.replace("->", "→")
    return f"{asks}: {title}. {', '.join(then)}, {time_of(first)}.{close}"


def charts(plan: PlanResult, estimate: Estimate, remedy: Remedy) -> tuple[Chart, ...]:
    """The memory now and with the remedy: a GPU's, and a node's where that is too small."""
    if short_of_host(plan):
        return node_chart(plan, estimate, remedy), gpu_chart(plan, estimate, remedy, "GPU ")
    if gpu_fit(estimate, plan.fail_above) == UNCERTAIN:
        ends = upper_end_chart(estimate, remedy)
        return ends, gpu_chart(plan, estimate, remedy, "predicted ", ends.scale)
    return (gpu_chart(plan, estimate, remedy, ""),)


def gpu_chart(plan: PlanResult, estimate: Estimate, remedy: Remedy, whose: str, axis: Scale | None = None) -> Chart:
    """A GPU's memory now and with the remedy, as bars. Each is a share of its GPU's own capacity.

    ``whose``: the text before ``now`` and ``then`` in the labels.
    """
    after = int(remedy.utilization * estimate.capacity_bytes)
    here = GPU_TONES[gpu_fit(estimate, plan.fail_above)]
    fits = "bad" if remedy.utilization > min(plan.fail_above, 1.0) else "good" if remedy.sure else "warn"
    before = Bar(f"{whose}now", (Segment(here, estimate.needed_bytes),), percent(estimate.utilization))
    then = Bar(f"{whose}then", (Segment(fits, after),), percent(remedy.utilization))
    title = f"{before.figure} of the capacity now, {then.figure} then ({gib(remedy.needed_bytes)} GiB)"
    plain = Scale(max(estimate.capacity_bytes, estimate.needed_bytes), estimate.capacity_bytes)
    return Chart(id=f"remedy-{slug(remedy)}-gpu", title=title, bars=(before, then), scale=axis or plain)


def upper_end_chart(estimate: Estimate, remedy: Remedy) -> Chart:
    """The upper ends of the intervals now and with the remedy, each as a share of the capacity."""
    capacity, now = estimate.capacity_bytes, estimate.needed_interval_bytes[1]
    after = int(remedy.high_utilization * capacity)
    before = Bar("up to, now", (Segment("warn", now),), percent(high_utilization(estimate)))
    then = Bar("up to, then", (Segment("good" if remedy.sure else "warn", after),), percent(remedy.high_utilization))
    title = f"Up to {before.figure} of the capacity now, up to {then.figure} then"
    return Chart(
        id=f"remedy-{slug(remedy)}-high",
        title=title,
        bars=(before, then),
        scale=Scale(max(capacity, now, after), capacity),
    )


def node_chart(plan: PlanResult, estimate: Estimate, remedy: Remedy) -> Chart:
    """The most that the processes of a node hold, against what the plan says the node has."""
    capacity, now, after = plan.host_capacity_bytes or 0, estimate.host_bytes_per_node, remedy.host_bytes_per_node
    before = Bar("host now", (Segment("bad", now),), f"{gib(now)} GiB")
    fits = on_host(after, capacity)
    then = Bar("host then", (Segment("good" if fits else "bad", after),), f"{gib(after)} GiB")
    title = f"{before.figure} of the {gib(capacity)} GiB of a node now, {then.figure} then"
    return Chart(
        id=f"remedy-{slug(remedy)}-host",
        title=title,
        bars=(before, then),
        scale=Scale(max(capacity, now, after), capacity),
    )


def change_lines(each: RemedyStep) -> list[str]:
    """One line per key that the remedy sets: ``key: old -> new``, or what the owner of a config writes."""
    return [clean(item.written or f"{item.key}: {item.before} -> {item.after}") for item in each.changes]


def new_values(remedy: Remedy) -> list[str]:
    """``key: new``, or what the owner of a config writes, for places that do not know the plan."""
    words = remedy.written or {}
    lines = [words.get(key, f"{key}: {value(new)}") for key, new in remedy.set.items()]
    return [clean(line) for line in lines if line]


def advice_lines(plan: PlanResult, finding: Finding) -> list[str]:
    """A line per remedy, then the help: for places that show no tables."""
    lines = [f"remedy ({ASKS[remedy.group]}): {remedy_line(plan, remedy)}" for remedy in finding.remedies]
    return [*lines, f"help: {clean(finding.help)}"] if finding.help else lines


def remedy_line(plan: PlanResult, remedy: Remedy) -> str:
    """The keys that a remedy changes, what that does to the memory, and what it costs."""
    each = step(plan, remedy)
    paid = "; ".join(filter(None, (f"time {price(each)}", each.paid)))
    return f"{'; '.join(change_lines(each))}   {each.effect}; {paid}"


def stated(plan: PlanResult, key: str) -> object:
    """The value of a dotted key as the plan states it, else as it was assumed, else what silence means; or None."""
    found: object = plan.values
    parts = key.split(".")
    for index, part in enumerate(parts):
        if not isinstance(found, dict):
            # `optimizer: adamw` is short for `optimizer: {name: adamw}`.
            return found if index == len(parts) - 1 and part in SHORT_FORMS else _assumed(plan, key)
        if part not in found:
            return _assumed(plan, key)
        found = found[part]
    return found


def _assumed(plan: PlanResult, key: str) -> object:
    keys = {key, *(f"{key}.{short}" for short in SHORT_FORMS)}
    return next((item.value for item in plan.assumptions if item.key in keys), SILENT.get(key))


def gpu_section(plan: PlanResult, *, checked: bool) -> Section | None:
    """The plan on its own GPU and on others."""
    if plan.dossier is None or not plan.dossier.gpus:
        return None
    own, *others = plan.dossier.gpus
    here = verdict(plan, checked=checked)
    first = card(plan, own, "as planned", checked=checked)._replace(word=here.word, tone=here.tone)
    cards = (first, *(card(plan, each, checked=checked) for each in others))
    note = f"The same plan on {plural(plan.gpus, 'GPU')} of another kind. TFLOPS are dense bf16, as the maker states."
    if all(each.host_short for each in plan.dossier.gpus if not each.refused):
        note += " None of them gives a node more host memory, which is what fails."
    if any(each.relative_speed for each in others):
        note += " Speeds are a roofline model's: good for ranking, not measured."
    assumed = assumptions(others)
    told = (Prose(f"These speeds assume: {'; '.join(assumed)}."),) if assumed else ()
    return Section("gpus", "On other GPUs", (Prose(note), Cards(cards), *told))


def assumptions(others: list[OnGpu]) -> list[str]:
    """The assumptions of the speeds, each once, with its GPUs."""
    found: dict[str, list[str]] = {}
    for each in others:
        for text in each.assumed:
            found.setdefault(text, []).append(each.gpu)
    return [f"{text} ({', '.join(names)})" for text, names in found.items()]


def card(plan: PlanResult, there: OnGpu, note: str = "", *, checked: bool = True) -> Card:
    """A card about the plan on one GPU of the catalog: whether the plan fits, the figures, and the GPU's rates."""
    rates = [f"{there.bf16_tflops:,.0f} TFLOPS"] if there.bf16_tflops else []
    rates += [f"{there.relative_speed:.2g}× the speed"] if there.relative_speed and not note else []
    has = f"{gib(there.capacity_bytes)} GiB"
    if there.refused:
        return Card(
            id=f"gpu-{there.gpu}",
            title=there.gpu,
            word="Not possible",
            tone="bad",
            lines=tuple(filter(None, (there.refused, has, *rates, note))),
        )
    found = verdict_on(plan, there, checked=checked)
    needs = f"{gib(there.needed_bytes)} of {has}"
    share = percent(there.utilization)
    bar = Bar("", (Segment(GPU_TONES[fit_on(plan, there)], there.needed_bytes),), share)
    axis = Scale(max(there.capacity_bytes, there.needed_bytes), there.capacity_bytes)
    chart = Chart(id=f"gpu-{there.gpu}-memory", title=f"{share} of {there.gpu}", bars=(bar,), scale=axis)
    why = there.fails if found.fails else ""
    return Card(
        id=f"gpu-{there.gpu}",
        title=there.gpu,
        word=found.word,
        tone=found.tone,
        lines=tuple(filter(None, (needs, *rates, why, note))),
        figure=share,
        chart=chart,
    )


def fit_on(plan: PlanResult, there: OnGpu) -> str:
    """What the need says of the memory of that GPU."""
    return on_gpu(there.needed_bytes, there.needed_high_bytes, there.capacity_bytes, plan.fail_above)


def verdict_on(plan: PlanResult, there: OnGpu, *, checked: bool = True) -> Verdict:
    """The verdict on the plan with that GPU. What is hidden on its own GPU fails it on no other."""
    interval = there.needed_low_bytes, there.needed_high_bytes
    answer = verdict_in(interval, there.capacity_bytes, plan.fail_above)
    found = said(answer, fit_on(plan, there), host=not there.host_short)
    accepted = {hidden.finding.code for hidden in plan.hidden}
    fails = checked and there.fails and there.fails.partition(":")[0] not in accepted
    return failed(found) if fails and found.tone != "bad" else found
