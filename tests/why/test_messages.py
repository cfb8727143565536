"""Public messages and logs: the kind of death, every figure within its printed resolution, GPU and rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from memcheck.why.evidence import DEVICE, UNKNOWN
from memcheck.why.log import read_log

MESSAGES = Path(__file__).parents[1] / "data" / "why" / "messages.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(MESSAGES.read_text(encoding="utf-8"))
PRINTED = re.compile(r"([0-9.]+) ?([KMG]?)(?:i?B|bytes|B)?")
FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def printed(figure: int | str) -> tuple[float, float]:
    """Bytes of a printed size, and half a unit of its last digit."""
    if isinstance(figure, int):
        return figure, 2
    match = PRINTED.fullmatch(figure)
    assert match is not None, figure
    _, _, decimals = match[1].partition(".")
    return float(match[1]) * FACTORS[match[2]], FACTORS[match[2]] / 2 / 10 ** len(decimals)


def test_there_are_a_hundred_public_messages() -> None:
    """At least a hundred, of every kind, a third of them not looked at while the table was written."""
    assert len(CASES) >= 100
    assert {case["kind"] for case in CASES} == {"device", "host", "shared-memory", "not-oom", "unknown"}
    assert sum(case.get("aside", False) for case in CASES) >= 40


def test_kind_figures_and_place() -> None:
    """The kind is right, and every printed figure, the GPU and the rank are read."""
    for case in CASES:
        first = read_log(case["message"].encode()).first
        assert (first.kind if first is not None else UNKNOWN) == case["kind"], case["id"]
        if first is None:
            continue
        for name, figure in case.get("figures", {}).items():
            count, half = printed(figure)
            found = first.figures[name]
            assert abs(found.bytes - count) <= max(half, found.resolution_bytes, 2), name
            assert found.resolution_bytes <= max(2 * half + 1, 2**29) or name == "reserved_unallocated_bytes", case[
                "id"
            ]
        assert first.rank == case.get("rank"), case["id"]
        if case["kind"] == DEVICE:
            assert first.gpu_index == case.get("gpu_index"), case["id"]
