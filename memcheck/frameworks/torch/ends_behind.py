"""Models whose body has returned before the modules in front of their loss run."""

from __future__ import annotations

from memcheck.models.types import Architecture


def returns_first(a: Architecture) -> bool:
    """Whether it is one of them."""
    return _transforms_behind(a) or _layers_behind(a)


def _transforms_behind(a: Architecture) -> bool:
    """Whether a layer in front of the head runs where the body has returned, and no norm ends a body whose variable has
    the looked-up rows (UltraBERT's has).
    """
    return bool(a.head_transform) and (a.embeddings_apart or a.final_norm is None)


def _layers_behind(a: Architecture) -> bool:
    """Whether the head's part of the forward starts where the body has returned: no norm ends the body, or none while
    a variable has the looked-up rows (modeling_modernbert.py, which rebinds ``hidden_states``).
    """
    return a.task is not None and (a.final_norm is None or (a.pooling is not None and a.pooling.norm))
