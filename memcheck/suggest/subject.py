"""The plan to search for: its file's bytes and its document."""

from __future__ import annotations

from memcheck.discover import find_plans
from memcheck.documents import load_plans
from memcheck.errors import UsageError
from memcheck.result import Unreadable
from memcheck.source.types import Document


def load(path: str, number: int | None) -> tuple[str, bytes, Document]:
    """The path as it is shown, the file's bytes, and its only document or the ``number``-th.

    Raises:
        UsageError: no file, unreadable, or several plans and no number.
    """
    files = list(find_plans((path,)))
    if len(files) != 1:
        raise UsageError(f"{path} holds {len(files)} plan files", "name one plan")
    (file,) = files
    if isinstance(file, Unreadable):
        raise UsageError(f"cannot read {file.path}: {file.message}")
    documents = load_plans(file.path, file.data)
    if not documents:
        raise UsageError(f"{path} holds no document", "a plan starts with `memcheck: 1`")
    if number is None and len(documents) > 1:
        raise UsageError(f"{path} holds {len(documents)} plans", f"choose one: --document 0 to {len(documents) - 1}")
    chosen = next((d for d in documents if d.index == number), None) if number is not None else documents[0]
    if chosen is None:
        raise UsageError(f"{path} has no document {number}", f"it holds {len(documents)}, counted from 0")
    return file.path, file.data, chosen
