"""A case: one plan and what a real step of it took."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))


def kept(path: str) -> Any:
    """What a benchmark wrote into a JSON file, by name; nothing where there is no such file yet."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class Case(NamedTuple):
    """A plan that is priced, and its truth."""

    id: str
    group: str
    plan: dict[str, Any]
    truth_bytes: int
    metric: str
    """``allocated`` | ``reserved``: what the truth counts."""
    source: str
    phase: str | None = None
    """The moment of the peak, where it is known."""
    pipeline_rank: int | None = None
    """The rank that was measured; the worst one when None."""
    parameters: int | None = None
    """Parameters of the traced model."""
    confidence: str = "high"
    family: str | None = None
    """What to leave out when a family is left out; the model type when None."""
    note: str = ""
    widens: bool = True
    """Whether its error counts in the width of intervals."""
    assumption: str = ""
    """What the plan states and the source does not, where another answer would need more than was read."""
    published: bool = False
    """Whether somebody read it on a job of their own: evidence of its own on how far predictions are off."""
    small: bool = False
    """Of a model made small, with all its buffers: its error counts over its own size, however little that is."""


class Unpriced(NamedTuple):
    """A record that no plan can state, and why."""

    id: str
    group: str
    reason: str


class Reading(NamedTuple):
    """A reading of what lies outside the allocator."""

    kind: str
    """``context`` | ``communicators``."""
    what: str
    predicted_bytes: int
    measured_bytes: int
    source: str


def load(name: str) -> dict[str, Any]:
    """One file of ``data``."""
    with open(os.path.join(HERE, "data", name), encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found
