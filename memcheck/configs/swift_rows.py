"""How long a row of ms-swift's can be: ``packing_length`` where rows are packed, or one sample that is longer."""

from __future__ import annotations

from memcheck.configs.draft import Draft
from memcheck.configs.trainer_parts import on

LENGTH, PACKED = "max_length", "packing_length"
KEY = "training.sequence_length"


def longest_row(draft: Draft) -> tuple[str, bool]:
    """The argument that says how long a row can be, and whether rows are packed.

    A sample that is longer than the packed rows is a row of its own (``swift/dataset/packing.py``: a bin packing).
    """
    packed = on(draft, "packing")
    draft.config.see(LENGTH, PACKED)
    if not packed or not draft.config.has(PACKED):
        return LENGTH, packed
    sample, row = draft.whole(LENGTH, KEY), draft.whole(PACKED, KEY)
    return (LENGTH if sample and row and sample > row else PACKED), packed
