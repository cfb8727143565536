"""One mistake, one error: what follows from the same degree becomes a note of the first finding about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcheck.finding import Finding, Location
from memcheck.rules.place import place
from memcheck.rules.types import RuleContext
from memcheck.rules.words import divisors, listed

DEGREES = ("tensor", "context", "pipeline", "expert", "expert_tensor", "data", "virtual_stages")
HELPED = ("tensor", "context", "pipeline")
"""Degrees of which others can be tried: the number of GPUs stays, and ``data`` takes up the difference."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    Starts = Callable[[RuleContext], bool]
    """Whether no rule keeps a job from starting."""


def joined(context: RuleContext, findings: Sequence[Finding], starts: Starts) -> list[Finding]:
    """The findings, those errors joined that name the same degree as an earlier one.

    Only for errors that keep a job from starting: none of them can be hidden.
    """
    marks = context.document.marks
    degrees = {
        place(context.document, pointer): name for name in DEGREES if (pointer := f"/parallelism/{name}") in marks
    }
    kept: list[Finding] = []
    owners: dict[str, int] = {}
    merged: dict[int, str] = {}
    for finding in findings:
        names = _named(finding, degrees)
        owner = next((owners[name] for name in names if name in owners), None)
        if owner is None:
            owners.update((name, len(kept)) for name in names)
            kept.append(finding)
            continue
        first = kept[owner]
        kept[owner] = first._replace(related=(*first.related, (f"{finding.code}: {finding.message}", finding.location)))
        merged[owner] = next(name for name in names if owners.get(name) == owner)
    for number, name in merged.items():
        help = _fitting(context, name, starts)
        if help:
            kept[number] = kept[number]._replace(help=help)
    return kept


def _named(finding: Finding, degrees: dict[Location, str]) -> list[str]:
    """The degrees that a finding points at, the one it underlines first."""
    places = [finding.location, *(where for _, where in finding.related)]
    return list(dict.fromkeys(degrees[where] for where in places if where in degrees))


def _fitting(context: RuleContext, name: str, starts: Starts) -> str:
    """Values of a degree with which nothing keeps the job from starting, those that divide the GPUs tried."""
    layout, job = context.layout, context.resolved.job
    if name not in HELPED or context.plan.parallelism.data is not None:
        return ""
    found = []
    for value in divisors(layout.world_size, layout.world_size):
        sizes = {each: value if each == name else getattr(layout, each) for each in HELPED}
        tensor, ring, stages = (sizes[each] for each in HELPED)
        if layout.world_size % (tensor * ring * stages):
            continue
        data = layout.world_size // (tensor * ring * stages)
        tried = layout._replace(tensor=tensor, context=ring, pipeline=stages, data=data)
        tried = tried._replace(
            shard_group=min(layout.shard_group, data * ring), sequence=layout.sequence and tensor > 1
        )
        resolved = context.resolved._replace(job=job._replace(layout=tried))
        if starts(context._replace(resolved=resolved)):
            found.append(f"`{name}: {value}`")
    return f"with everything else as it is, {listed(found, 'or')} would do" if found else ""
