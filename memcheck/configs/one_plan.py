"""The one plan of a file that a command was asked about."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.config.discover import find_plans
from memcheck.configs.documents import NOTHING, load_plans
from memcheck.errors import UsageError
from memcheck.plan.document import Document
from memcheck.result import Unreadable


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
    documents = load_plans(file.path, file.data, hardware=hardware)
    if not documents:
        raise UsageError(f"{path} holds no document", "a plan starts with `memcheck: 1`")
    if number is None and len(documents) > 1:
        raise UsageError(f"{path} holds {len(documents)} plans", f"choose one: --document 0 to {len(documents) - 1}")
    if number is not None and not 0 <= number < len(documents):
        raise UsageError(f"{path} has no document {number}", f"it holds {len(documents)}, counted from 0")
    return file.path, file.data, documents[number or 0]
