"""Published jobs that ran or died of out of memory (``data/outcomes.json``), against the verdict of the gate.

*Unsafe*: the job died, and its plan passes. *Refused*: it ran, and its plan does not pass: beyond the card, above the
limit alone, or for another reason. A reading is compared with *allocated*, where that is what was read; one of reserved
memory lies inside the interval of what is seen, or not. An error message says what was in use and what was asked for:
the step needs no less than both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.cases import Case, load
from benchmarks.score import reserved_between, resolved
from memcheck.errors import MemcheckError
from memcheck.judge import Gate, check_file
from memcheck.memory.fit import FITS
from memcheck.memory.overhead import surroundings
from memcheck.rules.result import PASSED

GIB = 2**30
ASKED = "in use and asked for when an allocation failed"
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
    reserved_bytes: int | None = None
    """What the source read of ``max_memory_reserved``."""
    asked_bytes: int | None = None
    """What was in use when an allocation failed, and that allocation."""
    apart: str = ""
    """A kind that something is not known of yet: it counts in no rate and calibrates nothing."""
    reading_bytes: int | None = None
    """Whatever was read."""


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
    reserved_ends: tuple[int, int] | None = None
    """Between which figures reserved memory is predicted to be seen."""
    reserved_bytes: int | None = None
    warned: bool = False
    """It passes with a warning: the interval of its need reaches beyond the limit."""

    @property
    def short(self) -> bool:
        """Less is predicted than was in use and asked for when the job died."""
        asked, found = self.outcome.asked_bytes, self.allocated_bytes
        return asked is not None and found is not None and found < asked

    @property
    def outside(self) -> bool:
        """A reading of reserved memory lies outside of what is predicted to be seen."""
        reading, ends = self.outcome.reserved_bytes, self.reserved_ends
        return reading is not None and ends is not None and not ends[0] <= reading <= ends[1]

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
    asked: int = 0
    """Jobs that died with a message of what was in use and asked for."""
    short: int = 0
    seen: int = 0
    """Readings of reserved memory."""
    outside: int = 0


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
        counter = reading["counter"] if reading is not None else ""
        ran, size = job["outcome"] != "oom", reading["bytes"] if reading is not None else None
        found.append(
            Outcome(
                id=job["id"],
                kind=kind_of(job["plan"]),
                died=job["outcome"] == "oom",
                plan=job["plan"],
                allocated_bytes=size if "allocated" in counter else None,
                source=job["source"],
                quote=job["quote"],
                assumption=job["assumption"],
                reserved_bytes=size if ran and "reserved" in counter else None,
                asked_bytes=size if counter == ASKED else None,
                apart=job.get("apart", ""),
                reading_bytes=size,
            )
        )
    return found


GROUP = "published jobs"


def cases() -> list[Case]:
    """What was read of *allocated* and of reserved memory on jobs that ran, where the source says all of the plan."""
    read = [job for job in outcomes() if not job.died and not job.assumption and not job.apart]
    return [
        Case(
            id=job.id,
            group=GROUP if metric == "allocated" else f"{GROUP} ({metric})",
            plan={"memcheck": 1, "name": job.id, **job.plan},
            truth_bytes=size,
            metric=metric,
            source=job.source,
            published=True,
        )
        for job in read
        for metric, size in (("allocated", job.allocated_bytes), ("reserved", job.reserved_bytes))
        if size
    ]


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
    ends = None
    if estimate is not None:
        job, gpu, _ = resolved({"memcheck": 1, "name": outcome.id, **outcome.plan})
        ends = reserved_between(estimate.interval_bytes, gpu.memory_bytes, surroundings(job, gpu).outside)
    return Verdict(
        outcome=outcome,
        passed=passed,
        utilization=estimate.utilization if estimate else None,
        allocated_bytes=estimate.allocated_bytes if estimate else None,
        reason=reason,
        message="" if passed or not errors else f"{errors[0].code} {errors[0].message}",
        reserved_ends=ends,
        reserved_bytes=estimate.reserved_bytes if estimate else None,
        warned=passed and result.verdict != FITS,
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
        asked=sum(v.outcome.asked_bytes is not None for v in dead),
        short=sum(v.short for v in dead),
        seen=sum(v.outcome.reserved_bytes is not None for v in alive),
        outside=sum(v.outside for v in alive),
    )


def by_kind(verdicts: Iterable[Verdict]) -> dict[str, Rates]:
    """Both rates per kind of job, and of all; without the kinds that are listed apart."""
    kinds: dict[str, list[Verdict]] = {}
    every = [verdict for verdict in verdicts if not verdict.outcome.apart]
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
        for field in ("unsafe", "unsafe_stated", "beyond", "limit", "other", "short", "outside"):
            value, recorded = getattr(new, field), old.get(field, 0)
            if value > recorded:
                found.append(f"outcomes, {kind}: {field} {value}, recorded {recorded:g}")
        found += [
            f"outcomes, {kind}: {field} {getattr(new, field):.2%}, recorded {old[field]:.2%}"
            for field in ("median", "worst")
            if getattr(new, field) > old[field] + slack
        ]
    return found


def record(found: dict[str, Rates]) -> dict[str, dict[str, float]]:
    """What ``--check`` compares with."""
    return {kind: {name: round(value, 5) for name, value in r._asdict().items()} for kind, r in found.items()}


def line(kind: str, r: Rates) -> str:
    """One kind on a terminal."""
    readings = f"; allocated: median {r.median:.2%}, worst {r.worst:.2%} of {r.readings}" if r.readings else ""
    return (
        f"{kind:36} died {r.died:3}, unsafe {r.unsafe} ({r.unsafe_stated} fully stated); "
        f"ran {r.ran:3}, refused {r.beyond} beyond, {r.limit} above the limit, {r.other} otherwise{readings}; "
        f"{r.short} of {r.asked} predicted below what was asked for; {r.outside} of {r.seen} outside of what is seen"
    )


HEAD = [
    (
        "| kind of job | died | unsafe | fully stated | ran | refused: beyond the card | above the limit | otherwise |"
        " readings | median | worst | asked for | predicted below | reserved | outside |"
    ),
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
]


def row(kind: str, r: Rates) -> str:
    """One kind as a row of a table."""
    readings = f"{r.readings} | {r.median:.2%} | {r.worst:.2%}" if r.readings else " | | "
    asked, seen = f"{r.asked} | {r.short}" if r.asked else " | ", f"{r.seen} | {r.outside}" if r.seen else " | "
    return (
        f"| {kind} | {r.died} | {r.unsafe} | {r.unsafe_stated} | {r.ran} | {r.beyond} | {r.limit} | {r.other} | "
        f"{readings} | {asked} | {seen} |"
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
        "*Asked for*: the message of jobs that died says what was in use and what was asked for, and *allocated* must",
        "not be predicted below both. *Reserved*: readings of jobs that ran, and those that lie outside of what is",
        "predicted to be seen.",
        "",
        *HEAD,
    ]
    found += [row(kind, r) for kind, r in by_kind(verdicts).items()]
    counted = [v for v in verdicts if not v.outcome.apart]
    found += ["", "Unsafe, each with what its plan assumes:", ""]
    found += [named(v) for v in counted if v.unsafe] or ["None."]
    found += ["", "Refused, though they ran:", ""]
    found += [named(v) for v in counted if v.refused] or ["None."]
    found += ["", "Readings of reserved memory outside of what is predicted to be seen:", ""]
    found += [read(v) for v in counted if v.outside] or ["None."]
    found += ["", "Jobs of kinds that something is not known of yet; they are in none of the figures above:", ""]
    found += [listed(v) for v in sorted(verdicts, key=lambda v: v.outcome.apart) if v.outcome.apart] or ["None."]
    without = load("outcomes.json")["unpriced"]
    found += ["", "Published jobs whose configuration is too incomplete for a plan:", ""]
    found += [", ".join(f"`{job['id']}`" for job in without if job["reason"] == "incomplete")]
    found += ["", "Published jobs that no plan can state yet:", ""]
    found += [f"- `{job['id']}`: {job['reason']}" for job in without if job["reason"] != "incomplete"]
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


def read(v: Verdict) -> str:
    """One reading of reserved memory that lies outside, as an item of a list."""
    low, high = v.reserved_ends or (0, 0)
    size = v.outcome.reserved_bytes or 0
    assumed = f"; assumed: {v.outcome.assumption}" if v.outcome.assumption else ""
    ends = f"{low / GIB:.2f} to {high / GIB:.2f} predicted"
    return f"- `{v.outcome.id}` ({v.outcome.kind}): {size / GIB:.2f} GiB, {ends}{assumed}; {v.outcome.source}"


def listed(v: Verdict) -> str:
    """One job of a kind apart, as an item of a list: what became of it, and what is said."""
    died = "died" if v.outcome.died else "ran"
    said = "no estimate" if v.utilization is None else f"{v.utilization:.1%} of the card"
    verdict = "passes" if v.passed else f"refused, {v.message if v.reason == OTHER else v.reason}"
    reserved = v.outcome.reserved_bytes
    reading, found = v.outcome.reading_bytes, v.reserved_bytes if reserved else v.allocated_bytes
    what = "reserved" if reserved else "live"
    of = f"; {reading / GIB:.2f} GiB read, {found / GIB:.2f} {what} predicted" if reading and found else ""
    assumed = f"; assumed: {v.outcome.assumption}" if v.outcome.assumption else ""
    return f"- {v.outcome.apart}: `{v.outcome.id}` {died}; {said}, {verdict}{of}{assumed}; {v.outcome.source}"


def named(v: Verdict) -> str:
    """One job that is judged wrongly, as an item of a list."""
    share = "no estimate" if v.utilization is None else f"{v.utilization:.1%} of the card"
    why = f"; {v.reason}" if v.reason else "; passes with a warning" if v.warned else ""
    if v.reason == OTHER:
        why = f"; {v.message}"
    assumed = f"; assumed: {v.outcome.assumption}" if v.outcome.assumption else ""
    return f"- `{v.outcome.id}` ({v.outcome.kind}): {share}{why}{assumed}; {v.outcome.source}"
