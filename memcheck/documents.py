"""The plans of a file, with everything that they take from other files."""

from __future__ import annotations

from memcheck.source.load import load_documents
from memcheck.source.types import Document


def load_plans(path: str, data: bytes) -> list[Document]:
    """Every document of a file: ``extends`` and ``source`` applied. Never raises for bad input."""
    return [_with_source(document) for document in load_documents(path, data)]


def _with_source(document: Document) -> Document:
    values = document.values
    if not isinstance(values, dict) or "source" not in values:
        return document
    from memcheck.interchange.sourced import with_source

    return with_source(document)
