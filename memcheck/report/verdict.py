"""The answer for one plan, in a word, in a sentence and in figures: every report takes it from here.

A verdict says where the whole interval of the need lies: the plan fits, it is uncertain, or it does not fit. The status
says what the gate makes of the plan: passed, failed or error. A plan may fail by the memory of a GPU, by the memory of
a node, by a rule that is about neither, or for lack of an estimate. A word names the gravest, a sentence all of them.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate, HostMoment
from memcheck.edge.screen import between, gib, percent, plural
from memcheck.memory.fit import (
    ABOVE,
    DOES_NOT_FIT,
    FITS,
    RUNS,
    TOO_LARGE,
    UNCERTAIN,
    gpu_fit,
    host_excess,
    verdict_of,
)
from memcheck.plan.finding import Finding
from memcheck.report.story.blocks import Verdict
from memcheck.rules.result import BASELINE, COMMENT, PASSED, SELECTION, PlanResult

WORDS = {FITS: "Fits", UNCERTAIN: "Uncertain", DOES_NOT_FIT: "Does not fit"}
TONES = {FITS: "good", UNCERTAIN: "warn", DOES_NOT_FIT: "bad"}
GPU_TONES = {FITS: "good", UNCERTAIN: "warn", ABOVE: "bad", TOO_LARGE: "bad"}
"""By what is said of a GPU's memory, where a report draws it."""
HOST_TOO_SMALL, FAILS, WARNS, NOT_ESTIMATED = (
    "Does not fit: host memory",
    "{}, fails the check",
    "Fits, with a warning",
    "Not estimated",
)
HOST = "MEM106"
"""The one memory finding that is about the node and not about the GPU."""
ACCEPTED = "Accepted"
"""What would fail the plan is hidden: by a comment, the baseline or the choice of rules."""
OUTSIDE = frozenset({"load", "init", "save"})
"""Instants that are no part of a training step: a peak there is named in the sentence."""
AT_REST = frozenset({"states at rest", "weights at rest"})
WHILE = {
    "load": "while the model is loaded",
    "init": "while the engine starts",
    "step": "while the steps run",
    "save": "while a checkpoint is saved",
}


def failed(found: Verdict) -> Verdict:
    """The verdict on a plan with this memory that fails by something else."""
    return Verdict(FAILS.format(found.word), "bad", fails=True)


def on_figures(plan: PlanResult, estimate: Estimate) -> Verdict:
    """The verdict by the figures of a plan alone, without its findings."""
    answer = verdict_of(estimate, plan.fail_above)
    return said(answer, gpu_fit(estimate, plan.fail_above), host=not short_of_host(plan))


def said(answer: str, gpu: str, *, host: bool = True) -> Verdict:
    """What figures say: a verdict, what the need says of a GPU, and whether a node has what its processes need."""
    if gpu in RUNS and not host:
        return Verdict(HOST_TOO_SMALL, "bad")
    return Verdict(WORDS[answer], "bad" if gpu not in RUNS else TONES[answer])


def verdict(plan: PlanResult, *, checked: bool = True) -> Verdict:
    """What the figures and, where they are shown, the findings say together."""
    estimate = plan.estimate
    if estimate is None:
        return Verdict(NOT_ESTIMATED, "bad")
    if checked and plan.accepted:
        return Verdict(ACCEPTED, "note")
    found = on_figures(plan, estimate)
    if not checked or found.word in (WORDS[DOES_NOT_FIT], HOST_TOO_SMALL):
        return found
    if plan.status != PASSED:
        return failed(found)
    if found.tone == "bad" or not plan.count("warning"):
        return found
    return Verdict(WARNS if found.word == WORDS[FITS] else found.word, "warn")


def short_of_host(plan: PlanResult) -> tuple[HostMoment, ...]:
    """The moments for which a node has too little memory, the worst first."""
    return () if plan.estimate is None else host_excess(plan.estimate, plan.host_capacity_bytes)


def host_decides(plan: PlanResult) -> bool:
    """Whether a node lacks memory and the GPUs do not."""
    estimate = plan.estimate
    return estimate is not None and gpu_fit(estimate, plan.fail_above) in RUNS and bool(short_of_host(plan))


def pressure(plan: PlanResult) -> float:
    """How full the fullest memory is, for ranking: a plan without an estimate comes before all others."""
    if plan.estimate is None:
        return float("inf")
    host, capacity = plan.estimate.host_bytes_per_node, plan.host_capacity_bytes
    return max(plan.estimate.utilization, host / capacity if capacity and short_of_host(plan) else 0.0)


def lead(plan: PlanResult, *, checked: bool = True) -> str:
    """The answer in a few sentences: what is missing where and by how much, what there is room for, what else fails."""
    estimate = plan.estimate
    if estimate is None:
        return unjudged(plan)
    sentences = [*host_sentences(plan), gpu_sentence(plan, estimate)]
    sentences = sentences if host_decides(plan) else [sentences[-1], *sentences[:-1]]
    if checked:
        others = failing(plan, estimate)
        if plan.accepted:
            sentences = [f"Accepted: {'; '.join(accepted(plan))}.", *sentences]
        elif on_figures(plan, estimate).tone == "bad":
            sentences += [f"It also fails by {each}" for each in others]
        else:
            sentences = [*(f"Fails by {each}" for each in others), *sentences, *warned(plan)]
    return " ".join(sentences)


def unjudged(plan: PlanResult) -> str:
    """What keeps a plan from being checked."""
    found = [each for each in plan.findings if each.severity == "error"]
    mend = f"{plural(len(found), 'error')} to mend before the memory of this plan can be predicted"
    return f"{mend}: {named(found[0])}" if found else f"{mend}."


def failing(plan: PlanResult, estimate: Estimate) -> list[str]:
    """What fails a plan in addition to the figures: the first such finding, and the number of further ones."""
    if plan.status == PASSED:
        return []
    found = [each for each in plan.findings if each.severity == "error" and not each.about_memory]
    if not found and on_figures(plan, estimate).tone != "bad":
        found = [each for each in plan.findings if each.severity == "error"]
        found = found or [each for each in plan.findings if each.severity == "warning"]
    more = f" {plural(len(found) - 1, 'more finding')} below." if len(found) > 1 else ""
    return [f"{named(found[0])}{more}"] if found else []


ACCEPTED_BY = {COMMENT: "a comment", BASELINE: "the baseline", SELECTION: "the choice of rules"}
UNSURE = "MEM104"
"""A warning that the sentence about the GPU says in figures."""


def warned(plan: PlanResult) -> list[str]:
    """The first warning of a plan that passes, and how many there are."""
    found = [each for each in plan.findings if each.severity == "warning" and each.code != UNSURE]
    if plan.status != PASSED or not found:
        return []
    head = "It passes with a warning" if len(found) == 1 else f"It passes with {len(found)} warnings, the first"
    return [f"{head}: {named(found[0], kind=False)}"]


def accepted(plan: PlanResult) -> list[str]:
    """What would fail a plan and what hides it, each with the reason: ``MEM101 exceeds-capacity by a comment: why``."""
    found: dict[str, None] = {}
    for each in plan.accepted:
        by = ACCEPTED_BY[each.by]
        why = each.why.strip().rstrip(".") if each.by != SELECTION else ""
        joint = " " if each.by == BASELINE else ": "
        found[f"{each.finding.code} {each.finding.name} by {by}{joint if why else ''}{why}"] = None
    return list(found)


def named(finding: Finding, *, kind: bool = True) -> str:
    """``MEM301 no-bf16: ...``; what the figures say of memory is not said twice."""
    head = f"{finding.code} {finding.name}"
    head = head if finding.severity == "error" or not kind else f"the {finding.severity} {head}"
    return f"{head}." if finding.about_memory else f"{head}: {finding.message.rstrip('.')}."


def gpu_sentence(plan: PlanResult, estimate: Estimate) -> str:
    """What each GPU needs, what it has, what is left or missing."""
    need, capacity = estimate.needed_bytes, estimate.capacity_bytes
    if estimate.engine is not None:
        from memcheck.report.story.findings import line  # of plans with an engine alone

        return f"{line(estimate.engine)}."
    gpu = plan.gpu or "GPU"
    when = f" {WHILE[estimate.instant]} ({estimate.operation})" if estimate.instant in OUTSIDE else ""
    if estimate.operation in AT_REST:
        when = ""
    found = gpu_fit(estimate, plan.fail_above)
    if found == TOO_LARGE:
        missing = gib(need - capacity)
        told = f"Needs {gib(need)} GiB on each {gpu}{when}, which has {gib(capacity)} GiB: {missing} GiB too much."
        return f"{told}{uncertain(plan, estimate)}"
    sentence = f"Needs {gib(need)} of the {gib(capacity)} GiB of each {gpu}{when}: {gib(capacity - need)} GiB remain."
    if found == ABOVE:
        over = gib(need - int(capacity * plan.fail_above))
        told = f"{sentence} The limit of {percent(plan.fail_above)} is exceeded by {over} GiB."
        return f"{told}{uncertain(plan, estimate)}"
    if estimate.longest_row:
        row = f"{estimate.longest_row:,} tokens"
        return f"{sentence} Its rows are not packed: it fits while the longest row of a micro-batch has at most {row}."
    if found == UNCERTAIN:
        ends = estimate.needed_interval_bytes
        limit = "the capacity" if plan.fail_above >= 1 else f"the limit of {percent(plan.fail_above)}"
        over = gib(ends[1] - min(capacity, int(capacity * plan.fail_above)))
        return f"{sentence} It may be {between(ends)} GiB, which is up to {over} GiB more than {limit}."
    return sentence


def uncertain(plan: PlanResult, estimate: Estimate) -> str:
    """What an interval adds to a need that is too much, where its lower end is not."""
    if verdict_of(estimate, plan.fail_above) != UNCERTAIN:
        return ""
    return f" It may be {between(estimate.needed_interval_bytes)} GiB, so that this is uncertain."


def host_sentences(plan: PlanResult) -> list[str]:
    """What a node lacks, and when; nothing where it lacks nothing."""
    moments, capacity = short_of_host(plan), plan.host_capacity_bytes or 0
    found = []
    for number, each in enumerate(moments):
        when = f"{WHILE[each.name]} ({each.operation})"
        has = f"and has {gib(capacity)} GiB: {gib(each.bytes - capacity)} GiB are missing." if not number else "too."
        found.append(f"A node needs {gib(each.bytes)} GiB of host memory {when}{' ' if not number else ', '}{has}")
    return found


def fullness(plan: PlanResult) -> str:
    """How full the memory is that decides, in a few words: for one line about a plan."""
    estimate = plan.estimate
    if estimate is None:
        return ""
    moments = short_of_host(plan)
    used = f"{percent(estimate.utilization)} of capacity"
    if not host_decides(plan):
        return used
    return f"host memory {gib(moments[0].bytes)} of {gib(plan.host_capacity_bytes or 0)} GiB a node, GPU {used}"
