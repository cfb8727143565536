"""Published jobs that ran or died of out of memory (``data/outcomes.json``), against the verdict of the gate.

*Unsafe*: the job died, and its plan passes. *Refused*: it ran, and its plan does not pass: beyond the card, above the
limit alone, or for another reason. A reading is compared with *allocated*, where that is what was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.cases import load
from memcheck.check import Gate, check_file
from memcheck.errors import MemcheckError
from memcheck.result import PASSED

GIB = 2**30
BEYOND, LIMIT, OTHER = "beyond the card", "above the limit", "another reason"
LIMIT_CODES = ("MEM102", "MEM104")


class Outcome(NamedTuple):
    """A published job as a plan, and what became of it."""

    id: str
    kind: str
    died: bool
    plan: dict[str, Any]
    allocated_bytes: int | None
    """What the source read of ``max_memory_allocated``."""
    source: str
    quote: str
    assumption: str
    """What the plan states and the source does not."""


class Verdict(NamedTuple):
    """What the gate says of a published job."""

    outcome: Outcome
    passed: bool
    utilization: float | None
    """None: the plan is refused without an estimate."""
    allocated_bytes: int | None
    reason: str
    """Why it does not pass: ``BEYOND`` | ``LIMIT`` | ``OTHER``; empty where it does."""
    message: str

    @property
    def unsafe(self) -> bool:
        """The job died, and the plan passes."""
        return self.outcome.died and self.passed

    @property
    def refused(self) -> bool:
        """The job ran, and the plan does not pass."""
        return not self.outcome.died and not self.passed

    @property
    def error(self) -> float | None:
        """Predicted *allocated* over the reading, minus one; of jobs that ran."""
        reading = self.outcome.allocated_bytes
        if self.outcome.died or reading is None or self.allocated_bytes is None:
            return None
        return self.allocated_bytes / reading - 1


class Rates(NamedTuple):
    """Both error rates of one kind of job, and how far the readings are."""

    died: int
    unsafe: int
    unsafe_stated: int
    """Unsafe plans that state nothing which the source does not."""
    ran: int
    beyond: int
    limit: int
    other: int
    readings: int
    median: float
    worst: float


def kind_of(plan: dict[str, Any]) -> str:
    """The stack, what is trained, and whether parameters are shared out."""
    training, parallelism = plan["training"], plan.get("parallelism", {})
    what = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}[training.get("method", "full")]
    sharded = parallelism.get("zero_stage", 0) > 1
    alone = plan["hardware"].get("gpus_per_node", 1) * plan["hardware"].get("nodes", 1) == 1
    return f"{training['framework']}, {what}, {'sharded' if sharded else 'one GPU' if alone else 'replicated'}"


def outcomes() -> list[Outcome]:
    """Every published job that a plan can state."""
    found = []
    for job in load("outcomes.json")["jobs"]:
        reading = job.get("reading")
        counts = reading is not None and "allocated" in reading["counter"]
        found.append(
            Outcome(
                id=job["id"],
                kind=kind_of(job["plan"]),
                died=job["outcome"] == "oom",
                plan=job["plan"],
                allocated_bytes=reading["bytes"] if counts else None,
                source=job["source"],
                quote=job["quote"],
                assumption=job["assumption"],
            )
        )
    return found


def judged(outcome: Outcome) -> Verdict:
    """The verdict of the gate with its defaults.

    Raises:
        MemcheckError: memcheck itself failed.
    """
    text = json.dumps({"memcheck": 1, "name": outcome.id, **outcome.plan}).encode()
    (result,), traces = check_file("outcome.yaml", text, Gate())
    if traces:
        raise MemcheckError(f"{outcome.id}: {traces[0]}")
    errors = [finding for finding in result.findings if finding.severity == "error"]
    estimate, passed, reason = result.estimate, result.status == PASSED, ""
    if not passed:
        reason = OTHER
        if estimate is not None and estimate.utilization > 1:
            reason = BEYOND
        elif errors and all(finding.code in LIMIT_CODES for finding in errors):
            reason = LIMIT
    return Verdict(
        outcome=outcome,
        passed=passed,
        utilization=estimate.utilization if estimate else None,
        allocated_bytes=estimate.allocated_bytes if estimate else None,
        reason=reason,
        message="" if passed or not errors else f"{errors[0].code} {errors[0].message}",
    )


def rates(verdicts: Iterable[Verdict]) -> Rates:
    """Both error rates."""
    found = list(verdicts)
    dead, alive = [v for v in found if v.outcome.died], [v for v in found if not v.outcome.died]
    errors = [abs(v.error) for v in alive if v.error is not None]
    return Rates(
        died=len(dead),
        unsafe=sum(v.unsafe for v in dead),
        unsafe_stated=sum(v.unsafe and not v.outcome.assumption for v in dead),
        ran=len(alive),
        beyond=sum(v.reason == BEYOND for v in alive),
        limit=sum(v.reason == LIMIT for v in alive),
        other=sum(v.reason == OTHER for v in alive),
        readings=len(errors),
        median=median(errors) if errors else 0.0,
        worst=max(errors, default=0.0),
    )


def by_kind(verdicts: Iterable[Verdict]) -> dict[str, Rates]:
    """Both rates per kind of job, and of all."""
    kinds: dict[str, list[Verdict]] = {}
    every = list(verdicts)
    for verdict in sorted(every, key=lambda v: v.outcome.kind):
        kinds.setdefault(verdict.outcome.kind, []).append(verdict)
    return {**{kind: rates(found) for kind, found in kinds.items()}, "all": rates(every)}


def regressions(now: dict[str, Rates], before: dict[str, dict[str, float]], slack: float) -> list[str]:
    """Kinds that are worse than recorded. ``slack``: how much a share may grow."""
    found = []
    for kind, old in before.items():
        new = now.get(kind)
        if new is None or new.died + new.ran < old["died"] + old["ran"]:
            found.append(f"outcomes, {kind}: {old['died'] + old['ran']:g} jobs recorded")
            continue
        for field in ("unsafe", "unsafe_stated", "beyond", "limit", "other"):
            value = getattr(new, field)
            if value > old[field]:
                found.append(f"outcomes, {kind}: {field} {value}, recorded {old[field]:g}")
        found += [
            f"outcomes, {kind}: {field} {getattr(new, field):.2%}, recorded {old[field]:.2%}"
            for field in ("median", "worst")
            if getattr(new, field) > old[field] + slack
        ]
    return found


def record(found: dict[str, Rates]) -> dict[str, dict[str, float]]:
    """What ``--check`` compares with."""
    return {
        kind: {name: round(value, 5) for name, value in r._asdict().items()}
        for kind, r in found.items()
    }


def line(kind: str, r: Rates) -> str:
    """One kind on a terminal."""
    readings = f"; allocated: median {r.median:.2%}, worst {r.worst:.2%} of {r.readings}" if r.readings else ""
    return (
        f"{kind:36} died {r.died:3}, unsafe {r.unsafe} ({r.unsafe_stated} fully stated); "
        f"ran {r.ran:3}, refused {r.beyond} beyond, {r.limit} above the limit, {r.other} otherwise{readings}"
    )


HEAD = [
    ("| kind of job | died | unsafe | fully stated | ran | refused: beyond the card | above the limit | otherwise |"
    " readings | median | worst |"),
    "|---|---|---|---|---|---|---|---|---|---|---|",
]


def row(kind: str, r: Rates) -> str:
    """One kind as a row of a table."""
    readings = f"{r.readings} | {r.median:.2%} | {r.worst:.2%}" if r.readings else " | | "
    return (
        f"| {kind} | {r.died} | {r.unsafe} | {r.unsafe_stated} | {r.ran} | {r.beyond} | {r.limit} | {r.other} | "
        f"{readings} |"
    )


def section(verdicts: Sequence[Verdict]) -> list[str]:
    """Both error rates in RESULTS.md."""
    found = [
        "",
        "## Both error rates",
        "",
        "Published jobs that ran or died of out of memory, as plans, judged by the gate with its default limits.",
        "*Unsafe*: the job died and its plan passes; *fully stated*: the source says all that the plan does.",
        "*Refused*: the job ran and its plan does not pass. Readings are of *allocated*, of jobs that ran.",
        "",
        *HEAD,
    ]
    found += [row(kind, r) for kind, r in by_kind(verdicts).items()]
    found += ["", "Unsafe, each with what its plan assumes:", ""]
    found += [named(v) for v in verdicts if v.unsafe] or ["None."]
    found += ["", "Refused, though they ran:", ""]
    found += [named(v) for v in verdicts if v.refused] or ["None."]
    without = load("outcomes.json")["unpriced"]
    found += ["", "Published jobs whose configuration is too incomplete for a plan:", ""]
    found += [", ".join(f"`{job['id']}`" for job in without)]
    return found


BEGIN, END = "<!-- both error rates: written by python -m benchmarks.accuracy --write -->", "<!-- end -->"


def in_readme(text: str, verdicts: Sequence[Verdict]) -> str:
    """README.md with the rates of all kinds between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    r = by_kind(verdicts)["all"]
    died = f"{r.unsafe} pass the gate, {r.unsafe_stated} of them with a plan that states no more than the source"
    ran = f"{r.beyond} are said to be beyond the card, {r.limit} above the limit alone, {r.other} to fail otherwise"
    table = [
        "| published jobs | | judged wrongly |",
        "|---|---|---|",
        f"| died of out of memory | {r.died} | {died} |",
        f"| ran | {r.ran} | {ran} |",
    ]
    return "\n".join([before + BEGIN, *table, END]) + after


def named(v: Verdict) -> str:
    """One job that is judged wrongly, as an item of a list."""
    share = "no estimate" if v.utilization is None else f"{v.utilization:.1%} of the card"
    why = f"; {v.reason}" if v.reason else ""
    if v.reason == OTHER:
        why = f"; {v.message}"
    assumed = f"; assumed: {v.outcome.assumption}" if v.outcome.assumption else ""
    return f"- `{v.outcome.id}` ({v.outcome.kind}): {share}{why}{assumed}; {v.outcome.source}"
