"""The parameter tensors of tables of other tokens than words (Gemma 3n)."""

from __future__ import annotations

from memcheck.models.parts.matrices import linear
from memcheck.models.types import Architecture, ParameterTensor


def embedder_tensors(a: Architecture) -> tuple[ParameterTensor, ...]:
    """The tensors of tables of other tokens, with the norms and matrices after them."""
    found: tuple[ParameterTensor, ...] = ()
    for e in a.embedders:
        found += (ParameterTensor(f"{e.name}.embedding.weight", (e.rows, e.width), "projector"),)
        found += (ParameterTensor(f"{e.name}.hard_embedding_norm.weight", (e.width,), "norm"),)
        found += linear(f"{e.name}.embedding_projection", a.hidden_size, e.width, "projector", "none")
    return found
