"""Draws random steps of every family that was added (``benchmarks.added``): odd sizes, recipes, layouts and adapters.

The tables of families hold ways that somebody chose; these are the ways that nobody did.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from benchmarks.added import MASKED, TOKENWISE, added_plans
from benchmarks.draw import draw_layout, draw_training

LENGTHS = (130, 257, 384, 500, 777, 1000, 1024, 1536)
SLOW_LENGTHS = (130, 256, 384)
SCANNED_LENGTHS = (17, 40, 70)
TARGETS = (33, 200, 447)
SCANNED = 40
"""Tokens of families whose fallback loops over tokens."""


@cache
def families() -> dict[str, dict[str, Any]]:
    """A plan of each family, without those of which a trace runs another kernel than a GPU."""
    found: dict[str, dict[str, Any]] = {}
    for name, plan in added_plans().items():
        kind = name.partition(" added")[0]
        if kind not in MASKED:
            found.setdefault(kind, plan)
    return found


def draw_family(seed: int, index: int, word: str = "") -> dict[str, Any]:
    """Step ``index`` of ``seed``, of families whose name has the word."""
    chance = Random(f"families {seed}.{index}")  # noqa: S311 - nothing is secret
    known = families()
    kind = chance.choice(sorted(k for k in known if word in k))
    base = known[kind]
    training = draw_training(chance)
    ranks, parallelism = draw_layout(chance, training)
    per_node = min(ranks, 8)
    return {
        **base,
        "name": f"{seed}.{index} {kind}",
        "hardware": {**base["hardware"], "gpus_per_node": per_node, "nodes": ranks // per_node},
        "parallelism": parallelism,
        "training": {**training, **_lengths(chance, kind, base["training"])},
    }


def _lengths(chance: Random, kind: str, stated: dict[str, Any]) -> dict[str, Any]:
    """Its tokens, and what the family states about its own kernels and targets."""
    found = {key: stated[key] for key in ("kernels",) if key in stated}
    if "target_length" in stated:
        return {**found, "sequence_length": stated["sequence_length"], "target_length": chance.choice(TARGETS)}
    slow = TOKENWISE.get(kind)
    lengths = LENGTHS if slow is None else SCANNED_LENGTHS if slow == SCANNED else SLOW_LENGTHS
    return {**found, "sequence_length": chance.choice(lengths)}
