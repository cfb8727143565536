"""One point: read, resolve, check the layout, predict memory, time the step."""

from __future__ import annotations

import os
from collections.abc import Mapping

from memcheck.accounts.estimate import Estimate
from memcheck.errors import UnsupportedError
from memcheck.finding import Finding
from memcheck.job.defaults import ResolutionError
from memcheck.job.resolve import Resolved, with_batch
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.judge import DEFAULT_FAIL_ABOVE, DEFAULT_WARN_ABOVE, Gate, effective_policy
from memcheck.memory.fit import RUNS, gpu_fit, host_capacity, host_excess
from memcheck.plan.document import Document
from memcheck.plan.types import Plan, PolicySpec
from memcheck.rules.budget import lacking
from memcheck.rules.located import located
from memcheck.rules.run import check_layout, make_context
from memcheck.timing.serving import decode_time
from memcheck.timing.step import step_time
from memcheck.timing.types import StepTime
from memcheck.what_if.points.frames import Frames
from memcheck.what_if.points.read import Variants
from memcheck.what_if.points.types import HOST, ILLEGAL, Point, PointProblem, Size

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
        """The plan with these values."""
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
    """The point with its memory and its time."""
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
        host_bytes=answer.host_bytes_per_node,
        host_capacity_bytes=capacity,
    )


def _timed(resolved: Resolved) -> tuple[StepTime | None, str]:
    job = resolved.job
    try:
        if isinstance(job, InferenceJob):
            return decode_time(job, resolved.gpu), ""
        return step_time(job, resolved.gpu), ""
    except UnsupportedError as error:
        return None, error.message


def _size(resolved: Resolved, step: StepTime | None) -> Size:
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
