"""The first remedies for a plan that needs too much memory: re-computed by the engine, cheapest first."""

from __future__ import annotations

from memcheck.finding import Finding, Remedy
from memcheck.job.types import TrainingJob
from memcheck.remedies.candidates import same_hardware
from memcheck.remedies.combine import combine, fits
from memcheck.remedies.degrees import degrees
from memcheck.remedies.edits import edits
from memcheck.remedies.hardware import larger_gpus, more_nodes
from memcheck.remedies.price import price
from memcheck.remedies.serving import serving
from memcheck.remedies.types import UNCHANGED, Candidate, Priced
from memcheck.rules.place import place
from memcheck.rules.run import check_layout
from memcheck.rules.types import Context

SHOWN = 5


def first_remedies(context: Context) -> tuple[Remedy, ...]:
    """Up to five changes, each of which makes the plan pass, cheapest first; empty when none was found.

    ``context`` carries the estimate of the plan as written. Single changes are tried first; when none that keeps
    hardware and training is enough, changes are combined.
    """
    allowed = frozenset(f.code for f in check_layout(context)[0])
    priced = [p for c in _candidates(context) if (p := price(c, context, allowed)) is not None]
    fitting = [p for p in priced if fits(p, context)]
    if not any(p.candidate.cost == UNCHANGED for p in fitting):
        fitting += combine(priced, context, allowed)
    return tuple(_remedy(p, context) for p in _mildest(fitting)[:SHOWN])


def attach(findings: list[Finding], context: Context) -> list[Finding]:
    """Put the remedies on the findings that say that the plan needs too much (MEM101, MEM102)."""
    if not any(f.code in {"MEM101", "MEM102"} for f in findings):
        return findings
    remedies = first_remedies(context)
    if not remedies:
        help = (
            "no change that memcheck tried makes it fit, nor the strongest together: take a smaller model or more GPUs"
        )
    else:
        best = remedies[0]
        before = context.estimate.utilization if context.estimate else 0.0
        help = f"{best.title}: {before:.1%} -> {best.utilization:.1%}"
    return [_with(f, remedies, help, context) if f.code in {"MEM101", "MEM102"} else f for f in findings]


def _with(finding: Finding, remedies: tuple[Remedy, ...], help: str, context: Context) -> Finding:
    """The finding with its remedies, at the written key that the cheapest of them changes."""
    finding = finding._replace(remedies=remedies, help=help)
    keys = remedies[0].set if remedies else {}
    pointer = next((p for k in keys if (p := "/" + k.replace(".", "/")) in context.document.marks), None)
    if pointer is None or pointer == finding.pointer:
        return finding
    here = place(context.document, pointer)
    related = tuple(r for r in finding.related if r[1] != here)
    return finding._replace(pointer=pointer, location=here, related=related)


def _candidates(context: Context) -> list[Candidate]:
    job = context.job
    if not isinstance(job, TrainingJob):
        return [*serving(context, job), *larger_gpus(context)]
    return [
        *same_hardware(context, job),
        *degrees(context, job),
        *more_nodes(context, job),
        *larger_gpus(context),
    ]


def _mildest(fitting: list[Priced]) -> list[Priced]:
    """The cheapest of every kind, cheapest first. Of equally cheap ones of a kind the first tried is the mildest."""
    kinds: dict[str, Priced] = {}
    for priced in sorted(fitting, key=lambda p: p.price):
        kinds.setdefault(priced.candidate.kind, priced)
    return sorted(kinds.values(), key=lambda p: p.rank)


def _remedy(priced: Priced, context: Context) -> Remedy:
    candidate, answer = priced.candidate, priced.estimate
    return Remedy(
        title=candidate.title,
        set=dict(priced.changes),
        device_bytes=answer.device_bytes,
        utilization=answer.utilization,
        slowdown=round(candidate.slowdown, 3),
        safe=candidate.cost == UNCHANGED,
        edits=edits(context.document, priced.changes, priced.document.values),
    )
