"""What else a default might be: other values that people often run, for keys that a plan leaves out.

A plan that passes with a default may not pass with what is really run. Only values that somebody may have meant without
saying so stand here; tests/rules/test_alternatives.py lists the keys that have none, and why.

The assumptions that a verdict depends on: what the plan would need with other values of keys that it leaves out.

Each is computed by the engine, for a plan in which the other value is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from memcheck.accounts.estimate import Estimate
from memcheck.errors import MemcheckError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import Ground
from memcheck.memory.estimate import estimate as priced
from memcheck.plan.finding import Location, Span
from memcheck.plan.places import Document, Provenance
from memcheck.plan.read import read_plan, with_changes
from memcheck.rules.run import check_standing, is_legal, make_context
from memcheck.rules.types import RuleContext

ALTERNATIVES: dict[str, tuple[object, ...]] = {
    "training.sequences": ("padded", "packed"),
    "parallelism.zero_stage": (1,),
    "training.attention": ("eager",),
    "training.activation_checkpointing.mode": ("full", "none"),
    "parallelism.gradient_sync": ("every", "last"),
    "training.loss.kind": ("fused-linear", "standard"),
    "parallelism.reshard_after_forward": (False, True),
    "training.expandable_segments": (True, False),
    "training.optimizer.name": ("adamw-8bit",),
    "training.precision.recipe": ("bf16-pure", "bf16-mixed"),
    "training.loss.keep_logits": (True, False),
    "training.optimizer.implementation": ("foreach", "fused"),
    "parallelism.sequence": (True, False),
    "training.expert_imbalance": (1.25,),
    "training.reference": ("precomputed", "resident"),
    "training.images.per_sample": (2,),
    "training.lora.target_modules": ("all-linear",),
    "training.lora.rank": (64,),
    "training.lora.dtype": ("bf16", "fp32"),
    "training.lora.dropout": (0.05,),
    "training.options.prepare_model_for_kbit_training": (False, True),
    "training.base.double": (True, False),
    "training.evaluation.logits": ("kept", "dropped"),
    "training.loss.upcast": (True, False),
    "training.gradient_accumulation_steps": (2,),
    "parallelism.virtual_stages": (2,),
    "parallelism.gradient_as_bucket_view": (True,),
    "training.activation_checkpointing.reentrant": (False, True),
    "training.clip_grad_norm": (False, True),
    "training.initialization.place": ("device", "host"),
    "training.initialization.weights": ("fp32",),
    "training.checkpoint.state_dict": ("full", "sharded"),
    "inference.kv_cache": ("fp8",),
    "inference.weights": ("fp8",),
    "training.options.fsdp_version": (1, 2),
}
"""The first value that is not the default is tried. What most often decides, and costs little to
try, comes first."""


def alternative(key: str, value: object) -> object:
    """Another value of a key, or None where no other value is likely to be meant."""
    return next((other for other in ALTERNATIVES.get(key, ()) if other != value), None)


LEAST = 0.01
"""A share of the need: what another value changes below this is not worth a word."""


def rests_on(context: RuleContext, known: frozenset[str], most: int) -> tuple[tuple[Ground, ...], int]:
    """Return the assumptions that move the need by more than 1 %, the largest first, and how many were not tried.

    ``most``: how many assumptions are tried. ``known``: the codes of what the rules find in the plan as it is.
    """
    now = context.estimate
    if now is None:
        return (), 0
    keys = tried(context)
    found = [ground for ground, _ in grounds(context, known, keys[:most])]
    moved = [each for each in found if abs(each.needed_bytes - now.needed_bytes) > LEAST * now.needed_bytes]
    moved.sort(key=lambda each: -abs(each.needed_bytes - now.needed_bytes))
    return tuple(moved), len(keys[most:])


def tried(context: RuleContext) -> list[str]:
    """Return the keys of the assumptions that have another value, in the order of the alternatives."""
    taken = _assumed(context)
    return [key for key in ALTERNATIVES if key in taken and alternative(key, taken[key]) is not None]


def grounds(context: RuleContext, known: frozenset[str], keys: Sequence[str]) -> Iterator[tuple[Ground, Estimate]]:
    """Yield each of these assumptions with another value, and the estimate with that."""
    taken = _assumed(context)
    document = unplaced(context)
    for key in keys:
        other = alternative(key, taken[key])
        answer = priced_with(context, document, known, {key: other})
        if answer is not None:
            stated = list(taken[key]) if isinstance(taken[key], tuple) else taken[key]  # type: ignore[call-overload]
            yield (
                Ground(
                    key=key,
                    value=stated,
                    other=other,
                    needed_bytes=answer.needed_bytes,
                    utilization=answer.utilization,
                ),
                answer,
            )


def unplaced(context: RuleContext) -> Document:
    """Return the plan's document without the places of its values, which the estimates here do not need."""
    nowhere = Provenance(None, Location(context.document.path, Span(1, 1, 1, 1)))
    return context.document._replace(marks={"": nowhere})


def _assumed(context: RuleContext) -> dict[str, object]:
    """The assumptions' values, by key."""
    return {each.key: each.value for each in context.resolved.assumptions}


def priced_with(
    context: RuleContext, document: Document, known: frozenset[str], change: dict[str, object]
) -> Estimate | None:
    """Return the estimate with a value written; None where such a plan would be another one, or none."""
    try:
        plan, findings = read_plan(with_changes(document, change))
        if plan is None or any(each.severity == "error" for each in findings):
            return None
        plan = plan._replace(policy=context.plan.policy)
        resolved = resolve(plan, FRAMEWORKS, base_dir=os.path.dirname(document.path))
        limits = {"fail_above": context.fail_above, "warn_above": context.warn_above}
        changed = make_context(plan, document, resolved, **limits)
        if not is_legal(changed, known, check_standing(changed)):
            return None
        return priced(resolved.job, resolved.gpu, resolved.overhead, every_rank=False)
    except MemcheckError:
        return None
