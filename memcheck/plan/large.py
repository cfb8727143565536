"""Files that are too large to be parsed."""

from __future__ import annotations

from memcheck.edge.opener import open_file
from memcheck.plan.sniff import may_spell
from memcheck.plan.text import MAX_BYTES


def may_hold_plan(file: str) -> bool:
    """Whether a file that is too large to parse mentions the mark: then it is reported, not passed over."""
    overlap = 1024  # more than any spelling of the mark that someone means to be read
    held = b""
    with open_file(file) as stream:
        while part := stream.read(MAX_BYTES):
            held = held[-overlap:] + part.replace(b"\0", b"")
            if may_spell(held):
                return True
    return False
