"""A plan on its own GPU and on other GPUs, as cards."""

from __future__ import annotations

from memcheck.accounts.dossier import OnGpu
from memcheck.edge.text import gib, percent, plural
from memcheck.memory.fit import on_gpu, verdict_in
from memcheck.report.story import Prose
from memcheck.report.story.blocks import Bar, Card, Cards, Chart, Scale, Section, Segment, Verdict
from memcheck.report.verdict import GPU_TONES, failed, said, verdict
from memcheck.result import PlanResult


def section(plan: PlanResult, *, judged: bool) -> Section | None:
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
    """The assumptions of the speeds, each once, with its GPUs."""
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
            id=f"gpu-{there.gpu}",
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


def verdict_on(plan: PlanResult, there: OnGpu, *, judged: bool = True) -> Verdict:
    """The verdict on the plan with that GPU. What is hidden on its own GPU fails it on no other."""
    interval = there.needed_low_bytes, there.needed_high_bytes
    answer = verdict_in(interval, there.capacity_bytes, plan.fail_above)
    found = said(answer, fit_on(plan, there), host=not there.host_short)
    accepted = {hidden.finding.code for hidden in plan.hidden}
    fails = judged and there.fails and there.fails.partition(":")[0] not in accepted
    return failed(found) if fails and found.tone != "bad" else found
