"""Counts of the model that several layout rules divide."""

from __future__ import annotations

from memcheck.models.types import Attention, LatentAttention, Moe
from memcheck.rules.types import RuleContext


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
