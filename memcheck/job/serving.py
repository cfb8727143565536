"""From ``inference:`` to a job."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.errors import JobProblem, ResolutionError
from memcheck.job.layout import resolve_layout
from memcheck.job.types import InferenceJob
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types


def inference_job(
    plan: plan_types.Plan,
    inference: plan_types.InferenceSpec,
    architecture: Architecture | Rough,
    defaults: Defaults,
) -> InferenceJob:
    """A server of the model.

    Raises:
        ResolutionError: the plan states no context.
    """
    if inference.context_length is None:
        problem = JobProblem(
            "missing",
            "/inference",
            "inference.context_length is missing: the KV cache is proportional to it",
            help="write the number of tokens per sequence, e.g. `context_length: 32768`",
        )
        raise ResolutionError((problem,))
    return InferenceJob(
        architecture=architecture,
        layout=resolve_layout(plan.hardware, plan.parallelism, None, defaults),
        batch_size=defaults.take("inference.batch_size", inference.batch_size, 1),
        context_length=inference.context_length,
        weights=defaults.take("inference.weights", inference.weights, "bf16"),
        kv_cache=defaults.take("inference.kv_cache", inference.kv_cache, "bf16"),
    )
