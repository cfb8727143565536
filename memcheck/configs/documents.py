"""The plans of a file, with everything that they take from other files."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.config.find import find_plans
from memcheck.configs.types import NO_DEFINES, NO_TEXTS
from memcheck.errors import UsageError
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents
from memcheck.rules.result import Unreadable

NOTHING: Mapping[str, object] = {}


def load_plans(
    path: str,
    data: bytes,
    texts: Mapping[str, bytes] = NO_TEXTS,
    hardware: Mapping[str, object] = NOTHING,
    answers: Mapping[str, object] = NOTHING,
) -> list[Document]:
    """Every document of a file: ``extends`` and ``source`` applied. Never raises for bad input.

    ``texts``: configs, by their shown path, that are read as if they held these bytes. ``hardware``: what a framework's
    own config runs on, and its length where it states none; a plan says that itself.
    ``answers``: what options say of a plan's job in the place of its own values; a config has them in ``hardware``.
    """
    config = _config(path, data, hardware)
    if config is not None:
        return [config]
    documents = [_with_source(document, texts, answers) for document in load_documents(path, data)]
    if not answers:
        return documents
    from memcheck.configs.answers import answered

    return [answered(document, answers) for document in documents]


def is_config(path: str, data: bytes) -> bool:
    """Whether a file is a framework's config or a launch script: a plan is made of it, and no fix edits it."""
    return _config(path, data, NOTHING) is not None


def _config(path: str, data: bytes, hardware: Mapping[str, object]) -> Document | None:
    if b"memcheck" in data and path.lower().endswith((".yaml", ".yml")):
        return None
    from memcheck.plan.sniff import looks_like_plan

    if looks_like_plan(data):
        return None
    from memcheck.configs.direct import config_document

    return config_document(path, data, hardware)


def _with_source(document: Document, texts: Mapping[str, bytes], answers: Mapping[str, object]) -> Document:
    values = document.values
    if not isinstance(values, dict) or "source" not in values:
        return document
    from memcheck.configs.sourced import with_source

    defines = answers.get("defines")
    return with_source(document, texts, defines if isinstance(defines, dict) else NO_DEFINES)


def load_one(
    path: str, number: int | None, purpose: str, hardware: Mapping[str, object] = NOTHING
) -> tuple[str, bytes, Document]:
    """The path as it is shown, the file's bytes, and its only document or the ``number``-th.

    ``hardware``: what a framework's own config runs on; a plan states that itself.

    Raises:
        UsageError: no file, unreadable, or several plans and no number; ``purpose`` says why one is needed.
    """
    files = list(find_plans((path,)))
    if len(files) != 1:
        raise UsageError(f"{path} holds {len(files)} plan files", f"name one plan: {purpose}")
    (file,) = files
    if isinstance(file, Unreadable):
        raise UsageError(f"cannot read {file.path}: {file.message}")
    return file.path, file.data, only_plan(path, load_plans(file.path, file.data, hardware=hardware), number)


def only_plan(path: str, documents: list[Document], number: int | None) -> Document:
    """The only document of a file, or the ``number``-th.

    Raises:
        UsageError: there is none of that number, or there are several and no number.
    """
    if not documents:
        raise UsageError(f"{path} holds no document", "a plan starts with `memcheck: 1`")
    if number is None and len(documents) > 1:
        raise UsageError(f"{path} holds {len(documents)} plans", f"choose one: --document 0 to {len(documents) - 1}")
    if number is not None and not 0 <= number < len(documents):
        raise UsageError(f"{path} has no document {number}", f"it holds {len(documents)}, counted from 0")
    return documents[number or 0]
