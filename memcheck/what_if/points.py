"""A point: a plan with some values replaced, what memory and speed it comes to, and the same as plain data."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from memcheck.accounts.estimate import Estimate
from memcheck.config.find import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE
from memcheck.errors import UnsupportedError
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import Resolved, with_batch
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.judge import Gate, effective_policy
from memcheck.memory.fit import ABOVE, FITS, RUNS, TOO_LARGE, UNCERTAIN, gpu_fit, host_capacity, host_excess, on_host
from memcheck.plan.finding import Finding
from memcheck.plan.places import Document
from memcheck.plan.types import Plan, PolicySpec
from memcheck.record import Record
from memcheck.rules.budget import lacking
from memcheck.rules.run import check_layout, make_context
from memcheck.rules.types import located
from memcheck.timing.serving import decode_time
from memcheck.timing.step import step_time
from memcheck.timing.types import StepTime
from memcheck.what_if.variants import Frames, Variants

HOST, ILLEGAL = "host-memory", "illegal"
VERDICTS = (FITS, UNCERTAIN, ABOVE, TOO_LARGE, HOST, ILLEGAL)
"""Verdicts on a point: the verdicts on a GPU's memory; ``host-memory`` where the GPU's memory suffices and the node's
does not; ``illegal`` where a rule refuses the plan."""


class PointProblem(Record):
    """Why a point cannot run as it is."""

    code: str
    message: str


class Size(Record):
    """Sequences and recompute of a training job, for people."""

    gpu: str
    gpus: int
    micro_batch: int
    accumulation: int
    global_batch: int
    overhead: float
    """Arithmetic that recompute adds, as a share of the model's own; 0 without recompute."""


class Point(Record):
    """One point. Without an estimate it is illegal, and ``problems`` say why."""

    set: Mapping[str, object]
    """Dotted keys and the values that were used in place of the plan's."""
    verdict: str
    """One of ``VERDICTS``."""
    problems: tuple[PointProblem, ...] = ()
    needed_bytes: int = 0
    """The floor below which the job dies; the verdict is taken on it."""
    needed_interval_bytes: tuple[int, int] = (0, 0)
    device_bytes: int = 0
    """What is seen on the GPU, the allocator's cache included."""
    capacity_bytes: int = 0
    interval_bytes: tuple[int, int] = (0, 0)
    instant: str = ""
    components_bytes: Mapping[str, int] = MappingProxyType({})
    step: StepTime | None = None
    untimed: str = ""
    """Why there is no step time."""
    size: Size | None = None
    kv_tokens: int | None = None
    """Tokens of KV cache that a serving engine has, 0 where it does not boot; None for plans without an engine."""
    host_bytes: int = 0
    """What the processes of a node need at most."""
    host_capacity_bytes: int | None = None
    """None where the plan does not state it."""

    @property
    def estimated(self) -> bool:
        """Whether the memory of the point was predicted. It is not for a plan that a rule refuses."""
        return self.verdict != ILLEGAL

    @property
    def utilization(self) -> float:
        """Needed bytes over the GPU's capacity; 0 where the capacity is not known."""
        return self.needed_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    @property
    def headroom_bytes(self) -> int:
        """What is left; negative where it is missing."""
        return self.capacity_bytes - self.needed_bytes

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the problems, once each."""
        return tuple(dict.fromkeys(problem.code for problem in self.problems))

    @property
    def host_short(self) -> bool:
        """Whether a node has less memory than its processes need."""
        return not on_host(self.host_bytes, self.host_capacity_bytes)


HOST_RULE = "MEM106"


class Evaluator:
    """Evaluates points of one plan under the gate of its file."""

    def __init__(self, document: Document, gate: Gate) -> None:
        self.document = document
        self.gate = gate
        self._variants = Variants(document)
        self._policy: tuple[PolicySpec | None, PolicySpec] = (None, PolicySpec())
        self._frames = Frames(os.path.dirname(document.path) or ".")

    @property
    def frames(self) -> int:
        """How many different points there were, their batches aside."""
        return len(self._frames)

    def point(self, changes: Mapping[str, object]) -> Point:
        """Return the plan with these values."""
        plan, findings = self._variants.read(changes)
        errors = [finding for finding in findings if finding.severity == "error"]
        if plan is None or errors:
            return Point(changes, ILLEGAL, _problems(errors))
        if plan.policy is not self._policy[0]:
            self._policy = (plan.policy, effective_policy(plan.policy, self.gate))
        plan = plan._replace(policy=self._policy[1])
        document = self.document  # rules place findings in it; what they judge is the resolved plan
        try:
            frame = self._frames.of(plan)
            resolved = with_batch(frame.known, plan.training)
            context = make_context(
                plan, document, resolved, fail_above=DEFAULT_FAIL_ABOVE, warn_above=DEFAULT_WARN_ABOVE
            )
            found, possible = check_layout(context, standing=frame.standing(context))
            errors = [f for f in found if f.severity == "error" and (not possible or self.gate.counts(f.code))]
            if errors or not possible:
                return Point(changes, ILLEGAL, _problems(errors))
            answer = frame.estimator().worst(resolved.job)
        except (ResolutionError, UnsupportedError) as error:
            return Point(changes, ILLEGAL, _problems(located(error, document)))
        return _priced(changes, plan, resolved, answer, context.fail_above)


def _problems(findings: list[Finding]) -> tuple[PointProblem, ...]:
    return tuple(PointProblem(finding.code, finding.message) for finding in findings)


def _priced(
    changes: Mapping[str, object], plan: Plan, resolved: Resolved, answer: Estimate, fail_above: float
) -> Point:
    """Return the point with its memory and its time."""
    verdict = gpu_fit(answer, fail_above)
    capacity = host_capacity(plan.hardware.host_memory_gib)
    problems: tuple[PointProblem, ...] = ()
    if above := host_excess(answer, capacity):
        verdict = HOST if verdict in RUNS else verdict
        problems = (PointProblem(HOST_RULE, lacking(above[0], capacity or 0, resolved.job.layout.gpus_per_node)),)
    step, untimed = _timed(resolved)
    return Point(
        set=changes,
        verdict=verdict,
        problems=problems,
        needed_bytes=answer.needed_bytes,
        needed_interval_bytes=answer.needed_interval_bytes,
        device_bytes=answer.device_bytes,
        capacity_bytes=answer.capacity_bytes,
        interval_bytes=answer.interval_bytes,
        instant=answer.instant,
        components_bytes=answer.components_bytes,
        step=step,
        untimed=untimed,
        size=_size(resolved, step),
        kv_tokens=_tokens(answer),
        host_bytes=answer.host_bytes_per_node,
        host_capacity_bytes=capacity,
    )


def _tokens(answer: Estimate) -> int | None:
    if answer.engine is None:
        return None
    return 0 if answer.engine.pool is None else answer.engine.pool.tokens


def _timed(resolved: Resolved) -> tuple[StepTime | None, str]:
    """Return the time of a step, or None and why there is none."""
    job = resolved.job
    try:
        if isinstance(job, InferenceJob):
            return decode_time(job, resolved.gpu), ""
        return step_time(job, resolved.gpu), ""
    except UnsupportedError as error:
        return None, error.message


def _size(resolved: Resolved, step: StepTime | None) -> Size:
    """Return the GPUs and batch sizes of a plan, and the share of its step that is recomputed."""
    job = resolved.job
    gpus = job.layout.world_size
    if not isinstance(job, TrainingJob):
        return Size(
            gpu=resolved.gpu.name,
            gpus=gpus,
            micro_batch=job.batch_size,
            accumulation=1,
            global_batch=job.batch_size,
            overhead=0.0,
        )
    accumulation = job.gradient_accumulation_steps
    overhead = 0.0 if step is None else step.recompute_share
    total = job.micro_batch_size * accumulation * job.layout.data
    return Size(
        gpu=resolved.gpu.name,
        gpus=gpus,
        micro_batch=job.micro_batch_size,
        accumulation=accumulation,
        global_batch=total,
        overhead=overhead,
    )


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
    "kv_tokens",
)
"""Columns of a table of points, in their order."""


def record(point: Point) -> dict[str, Any]:
    """Return the point for JSON: null where there is nothing."""
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
        "kv_tokens": point.kv_tokens,
    }


def step(time: StepTime) -> dict[str, Any]:
    """Return the modelled time of one step as JSON: seconds by part, rates, and what the model assumes."""
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
    """Return the point for a table: one value per column of ``COLUMNS``, empty where there is none."""
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
        "" if point.kv_tokens is None else point.kv_tokens,
    ]


def _figure(value: float) -> float:
    """Six significant digits: more than a model can vouch for, enough to tell points apart."""
    return float(f"{value:.6g}")


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector: estimates make records by the million, and none in a circle.

    What they made is old when the collector comes back, so that it does not begin by looking through all of it.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if not gc.get_freeze_count():  # otherwise somebody else has objects frozen, which are to stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
