"""Price a candidate: is the changed plan legal, and what does the engine say about it?"""

from __future__ import annotations

import os

from memcheck.errors import MemcheckError
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.remedies.change import apply, written
from memcheck.remedies.types import Candidate, Priced
from memcheck.rules.run import check_layout, make_context
from memcheck.rules.types import Context


def price(candidate: Candidate, context: Context, allowed: frozenset[str]) -> Priced | None:
    """The candidate with its estimate; None when the changed plan is invalid or breaks a rule that was not broken yet.

    ``allowed`` are the codes that the plan already has findings of.
    """
    changes = complete(candidate, context)
    changed = None if changes is None else apply(context.document, changes)
    if changes is None or changed is None:
        return None
    document, plan = changed
    plan = plan._replace(policy=context.plan.policy)
    try:
        resolved = resolve(plan, base_dir=os.path.dirname(document.path) or ".")
        new = make_context(plan, document, resolved, fail_above=context.fail_above, warn_above=context.warn_above)
        findings, possible = check_layout(new)
        if not possible or any(f.severity == "error" or f.code not in allowed for f in findings):
            return None
        answer = estimate(resolved.job, resolved.gpu, resolved.overhead, every_rank=False)
    except MemcheckError:
        return None
    if _exceeds_host(answer.host_bytes_per_node, context):
        return None
    return Priced(candidate, changes, document, answer)


def complete(candidate: Candidate, context: Context) -> dict[str, object] | None:
    """The candidate's changes with those that follow from them; None when the global batch cannot be kept."""
    changes: dict[str, object] = dict(candidate.set)
    job = context.training
    if job is None:
        return changes
    document, layout = context.document, job.layout
    steps, data = job.gradient_accumulation_steps * candidate.accumulate, layout.data * candidate.data
    if steps != int(steps) or data != int(data):
        return None
    if candidate.accumulate != 1 and written(document, "training.global_batch_size") is None:
        changes["training.gradient_accumulation_steps"] = int(steps)
    if candidate.data != 1 and written(document, "parallelism.data") not in {None, "auto"}:
        changes["parallelism.data"] = int(data)
    group = written(document, "parallelism.shard_group")
    if isinstance(group, int) and "parallelism.shard_group" not in changes:
        ranks = int(data) * _number(changes.get("parallelism.context"), layout.context)
        if group > ranks:
            changes["parallelism.shard_group"] = ranks
    return changes


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


def _exceeds_host(count: int, context: Context) -> bool:
    host = context.plan.hardware.host_memory_gib
    return host is not None and count > host * 2**30
