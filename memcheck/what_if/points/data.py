"""A point as plain data, the same in every machine-readable format."""

from __future__ import annotations

from typing import Any

from memcheck.timing.types import StepTime
from memcheck.what_if.points.types import Point

COLUMNS = (
    "verdict",
    "codes",
    "device_bytes",
    "capacity_bytes",
    "utilization",
    "headroom_bytes",
    "interval_low_bytes",
    "interval_high_bytes",
    "needed_bytes",
    "needed_low_bytes",
    "needed_high_bytes",
    "instant",
    "gpus",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "global_batch_size",
    "recompute_share",
    "step_seconds",
    "compute_seconds",
    "hbm_seconds",
    "exposed_communication_seconds",
    "bubble_seconds",
    "offload_seconds",
    "tokens_per_second_per_gpu",
    "model_tflops_per_gpu",
    "hardware_tflops_per_gpu",
    "model_flops_share",
    "host_bytes_per_node",
    "host_capacity_bytes",
)
"""Columns of a table of points, in their order."""


def record(point: Point) -> dict[str, Any]:
    """The point for JSON: null where there is nothing."""
    size = point.size
    return {
        "verdict": point.verdict,
        "problems": [{"code": problem.code, "message": problem.message} for problem in point.problems],
        "device_bytes": point.device_bytes if point.estimated else None,
        "capacity_bytes": point.capacity_bytes if point.estimated else None,
        "utilization": round(point.utilization, 6) if point.estimated else None,
        "headroom_bytes": point.headroom_bytes if point.estimated else None,
        "host_bytes_per_node": point.host_bytes if point.estimated else None,
        "host_capacity_bytes": point.host_capacity_bytes,
        "interval_bytes": list(point.interval_bytes) if point.estimated else None,
        "needed_bytes": point.needed_bytes if point.estimated else None,
        "needed_interval_bytes": list(point.needed_interval_bytes) if point.estimated else None,
        "instant": point.instant or None,
        "components_bytes": dict(point.components_bytes),
        "batch": None
        if size is None
        else {
            "gpus": size.gpus,
            "micro_batch_size": size.micro_batch,
            "gradient_accumulation_steps": size.accumulation,
            "global_batch_size": size.global_batch,
        },
        "step": None if point.step is None else step(point.step),
        "untimed": point.untimed or None,
    }


def step(time: StepTime) -> dict[str, Any]:
    """The modelled time of one step as JSON: seconds by part, rates, and what the model assumes."""
    return {
        "seconds": _figure(time.seconds),
        "compute_seconds": _figure(time.compute_seconds),
        "hbm_seconds": _figure(time.hbm_seconds),
        "exposed_communication_seconds": _figure(time.exposed_communication_seconds),
        "bubble_seconds": _figure(time.bubble_seconds),
        "offload_seconds": _figure(time.offload_seconds),
        "tokens_per_second_per_gpu": _figure(time.tokens_per_second_per_gpu),
        "model_tflops_per_gpu": _figure(time.model_tflops_per_gpu),
        "hardware_tflops_per_gpu": _figure(time.hardware_tflops_per_gpu),
        "model_flops_share": _figure(time.model_flops_share),
        "recompute_share": _figure(time.recompute_share),
        **({"prefill_seconds": _figure(time.prefill_seconds)} if time.prefill_seconds else {}),
        "assumptions": [{"key": a.key, "value": a.value, "why": a.why} for a in time.assumptions],
    }


def cells(point: Point) -> list[object]:
    """The point for a table: one value per column of ``COLUMNS``, empty where there is none."""
    codes = " ".join(point.codes)
    if not point.estimated:
        return [point.verdict, codes, *("",) * (len(COLUMNS) - 2)]
    size, time = point.size, point.step
    sizes: list[object] = [""] * 4
    if size is not None:
        sizes = [size.gpus, size.micro_batch, size.accumulation, size.global_batch]
    times: list[object] = [""] * 11
    if time is not None:
        times = [
            _figure(time.recompute_share),
            *(_figure(part) for part in time[:6]),
            _figure(time.tokens_per_second_per_gpu),
            _figure(time.model_tflops_per_gpu),
            _figure(time.hardware_tflops_per_gpu),
            _figure(time.model_flops_share),
        ]
    low, high = point.interval_bytes
    return [
        point.verdict,
        codes,
        point.device_bytes,
        point.capacity_bytes,
        round(point.utilization, 6),
        point.headroom_bytes,
        low,
        high,
        point.needed_bytes,
        *point.needed_interval_bytes,
        point.instant,
        *sizes,
        *times,
        point.host_bytes,
        "" if point.host_capacity_bytes is None else point.host_capacity_bytes,
    ]


def _figure(value: float) -> float:
    """Six significant digits: more than a model can vouch for, enough to tell points apart."""
    return float(f"{value:.6g}")
