"""YAML that was meant as a plan and lacks the mark: answered from its bytes, once it is known to be no plan."""

from __future__ import annotations

import re

from memcheck.edge.closest import closest
from memcheck.edge.lookalike import skeleton

_SECTION = re.compile(rb"^(model|hardware|training)[ \t]*:", re.MULTILINE)
_VERSION = re.compile(
    rb"""^["']?([A-Za-z_][A-Za-z_. -]{4,13})["']?[ \t]*:[ \t]*["']?1["']?[ \t]*(?:\#[^\n]*)?\r?$""",
    re.MULTILINE,
)
_OWN = re.compile(rb"\b(?:gpus_per_node|gpu|micro_batch_size|sequence_length|zero_stage)[ \t]*:")
"""Keys of a plan's sections that other tools' sections of those names have not."""
_MARK = "memcheck"
_ALIKE = 0.8
"""difflib's ratio of equal characters, from which on a key is the mark misspelt: ``memchek``, ``mem_check``."""


def misspells_mark(data: bytes) -> bool:
    """Whether the text misspells the mark, as in ``memchek: 1``: it has a similar key with the mark's value, and a
    section of a plan.
    """
    data = _plain(data)
    if not _SECTION.search(data):
        return False
    words = {found.decode("ascii").lower() for found in _VERSION.findall(data)}
    if not words:
        return False
    return bool(closest(_MARK, words, 1, _ALIKE))


def _plain(data: bytes) -> bytes:
    """The bytes with plain letters in place of those that look like them."""
    if data.isascii():
        return data
    return skeleton(data.decode("utf-8", "replace")).encode()


def resembles_plan(data: bytes) -> bool:
    """Whether two of a plan's sections stand at the top, with a key that only a plan's have."""
    data = _plain(data)
    return len(set(_SECTION.findall(data))) >= 2 and _OWN.search(data) is not None
