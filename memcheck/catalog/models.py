"""The catalog of models."""

from __future__ import annotations

from functools import lru_cache

from memcheck.catalog.names import UnknownNameError, canonical_names, find_record, read_index
from memcheck.catalog.types import Model


@lru_cache(maxsize=512)
def find_model(name: str) -> Model:
    """The model called ``name``: short name, Hugging Face id or alias, in any case, or the id of a copy of one.

    A copy has the name of a model under another organisation, or with words after it that say how its weights are
    stored or tuned; ``Model.read_as`` says so then.

    Raises:
        UnknownNameError: the catalog has no such model.
    """
    read_as = ""
    try:
        canonical, record = find_record("model", name)
    except UnknownNameError:
        from memcheck.catalog.hub_ids import copied

        copy = copied(name.strip(), read_index("model"))
        if copy is None:
            raise
        canonical, record = find_record("model", copy.name)
        read_as = f"{name.strip()} is read as {canonical}: the same name but for {' and '.join(copy.without)}"
    return Model(
        name=canonical,
        id=record["id"],
        config=record["config"],
        parameters=record["parameters"],
        source=record["source"],
        note=record.get("note", ""),
        read_as=read_as,
    )


def model_names() -> tuple[str, ...]:
    """Short names of every model, sorted."""
    return canonical_names("model")
