"""What rules about the layout share: counts of the model that they divide, and errors about the same degree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcheck.models.types import Attention, LatentAttention, Moe
from memcheck.plan.finding import Finding, Location
from memcheck.rules.budget import divisors, listed
from memcheck.rules.types import RuleContext, place


def head_counts(context: RuleContext) -> tuple[int, ...]:
    """Distinct numbers of query heads over all attention layers."""
    return _distinct(b.heads for b in _attentions(context))


def kv_head_counts(context: RuleContext) -> tuple[int, ...]:
    """Distinct numbers of key/value heads; latent attention has none of its own."""
    return _distinct(b.kv_heads for b in _attentions(context) if isinstance(b, Attention))


def moes(context: RuleContext) -> tuple[Moe, ...]:
    """Return the distinct routed mixtures of the model."""
    model = context.architecture
    return tuple(b.mlp for b, _ in model.blocks if isinstance(b.mlp, Moe)) if model else ()


def moves_heads(context: RuleContext) -> bool:
    """Context parallelism exchanges whole heads instead of keys and values."""
    job, framework = context.training, context.framework
    if job is None or framework is None or job.layout.context == 1:
        return False
    return framework.context_parallel == "ulysses" or job.option("cp_comm_type") == "a2a"


def _attentions(context: RuleContext) -> list[Attention | LatentAttention]:
    model = context.architecture
    if model is None:
        return []
    return [b.mixer for b, _ in model.blocks if isinstance(b.mixer, Attention | LatentAttention)]


def _distinct(counts: object) -> tuple[int, ...]:
    return tuple(dict.fromkeys(counts))  # type: ignore[call-overload]


DEGREES = ("tensor", "context", "pipeline", "expert", "expert_tensor", "data", "virtual_stages")
HELPED = ("tensor", "context", "pipeline")
"""Degrees of which others can be tried: the number of GPUs stays, and ``data`` takes up the difference."""

Starts = Callable[[RuleContext], bool]
"""Whether no rule keeps a job from starting."""


def joined(context: RuleContext, findings: Sequence[Finding], starts: Starts) -> list[Finding]:
    """Return the findings, those errors joined that name the same degree as an earlier one.

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
    """Return the degrees that a finding points at, the one it underlines first."""
    places = [finding.location, *(where for _, where in finding.related)]
    return list(dict.fromkeys(degrees[where] for where in places if where in degrees))


def _fitting(context: RuleContext, name: str, starts: Starts) -> str:
    """Return values of a degree with which nothing keeps the job from starting, those that divide the GPUs tried."""
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
