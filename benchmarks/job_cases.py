"""Whole jobs, traced in the trainer's own objects (``data/jobs.json``, by :mod:`benchmarks.job_trace`), as plans."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, load

GROUP = "whole jobs, traced"
STEP = ("init", "forward", "backward", "optimizer")


def records() -> list[dict[str, Any]]:
    """What was traced: one record a job."""
    found: list[dict[str, Any]] = load("jobs.json")["cases"]
    return found


def plan(record: dict[str, Any]) -> dict[str, Any]:
    """The plan of one record."""
    return {"memcheck": 1, "name": record["id"], "model": {"architecture": record["model"]}, **record["plan"]}


def moments(record: dict[str, Any]) -> dict[str, int]:
    """Bytes on the GPU at each moment of the second step, and of the evaluation.

    ``forward`` holds the loss, which an estimate tells apart.
    """
    traced = record["gpu_bytes"]
    return {**{name: traced["second"][name] for name in STEP}, "evaluation": traced["evaluation"]}


def predicted(instants: dict[str, int]) -> dict[str, int]:
    """The same moments of an estimate's instants."""
    return {**instants, "forward": max(instants["forward"], instants["loss"])}


def cases() -> list[Case]:
    """Each with the highest of its moments."""
    found = []
    for record in records():
        traced = moments(record)
        phase = max(traced, key=traced.__getitem__)
        versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
        found.append(
            Case(
                id=record["id"],
                group=GROUP,
                plan=plan(record),
                truth_bytes=traced[phase],
                metric="allocated",
                source=f"traces of {versions}",
                phase=None if phase == "forward" else phase,  # which holds the loss, too
                small=True,
            )
        )
    return found
