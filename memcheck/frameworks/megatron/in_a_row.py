"""Units of a chunk that are one object, many times in a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from memcheck.accounts.unit import Unit


def runs_of(units: Sequence[Unit]) -> list[tuple[Unit, int]]:
    """Units in a row that are one object: each once, and how many they are."""
    return [(alike[0], len(alike)) for alike in (list(same) for _, same in groupby(units, key=id))]
