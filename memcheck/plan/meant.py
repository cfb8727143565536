"""Whether a file that the user did not name is a plan."""

from __future__ import annotations

from memcheck.edge.opener import open_file
from memcheck.plan.sniff import looks_like_plan, may_spell
from memcheck.plan.text import MAX_BYTES


def is_meant(path: str, data: bytes, unmarked: list[str] | None, *, has_more: bool) -> bool:
    """Whether a file is a plan, or meant as one by a misspelt mark; what resembles one goes to ``unmarked``.

    ``has_more``: whether there is a file under the path, in which more stands where the bytes are too many.
    """
    if looks_like_plan(data) or (len(data) > MAX_BYTES and has_more and _may_hold_plan(path)):
        return True
    from memcheck.plan.unmarked import misspells_mark, resembles_plan

    if misspells_mark(data):
        return True
    if unmarked is not None and resembles_plan(data):
        unmarked.append(path)
    return False


def _may_hold_plan(file: str) -> bool:
    """Whether a file that is too large to parse mentions the mark: then it is reported, not passed over."""
    overlap = 1024  # more than any spelling of the mark that someone means to be read
    held = b""
    with open_file(file) as stream:
        while part := stream.read(MAX_BYTES):
            held = held[-overlap:] + part.replace(b"\0", b"")
            if may_spell(held):
                return True
    return False
