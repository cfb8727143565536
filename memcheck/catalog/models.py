"""The catalog of models."""

from __future__ import annotations

from functools import lru_cache

from memcheck.catalog.names import canonical_names, find_record
from memcheck.catalog.types import Model


@lru_cache(maxsize=64)
def find_model(name: str) -> Model:
    """The model called ``name``: short name, Hugging Face id or alias, in any case.

    Raises:
        UnknownNameError: the catalog has no such model.
    """
    canonical, record = find_record("model", name)
    return Model(
        name=canonical,
        id=record["id"],
        config=record["config"],
        parameters=record["parameters"],
        source=record["source"],
        note=record.get("note", ""),
    )


def model_names() -> tuple[str, ...]:
    """Short names of every model, sorted."""
    return canonical_names("model")
