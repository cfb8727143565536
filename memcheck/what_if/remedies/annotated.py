"""Changes that follow from the schema of plans: values with which a key needs less memory, and what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcheck.frameworks.torch.fsdp import wraps
from memcheck.job.changes import written
from memcheck.job.framework import Framework
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.load_and_save import critical
from memcheck.what_if.remedies.memory_keys import LOWER
from memcheck.what_if.remedies.types import EQUIVALENT, NUMERICS, OTHER, CandidateChange

OPTIONS = "training.options."
SAME = "same"


def annotated(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """One alternative per value that frees more than the plan's own; a kind of change for each key.

    Keys that this job does not read are left out: to price a plan that they do not change takes as long as any other.
    """
    framework = context.framework
    if framework is None:
        return
    for key, (result, values) in LOWER.items():
        if not _has(framework, key) or not READ.get(key, _always)(context, job):
            continue
        now = _now(context, key)
        for value, words in _lower(now, values):
            same = result == SAME
            yield CandidateChange(
                key, words, {key: value}, cost=0 if same else NUMERICS, numerics=EQUIVALENT if same else OTHER
            )


def _has(framework: Framework, key: str) -> bool:
    """Whether the framework reads the key, and its memory has a model."""
    if not key.startswith(OPTIONS):
        return key not in framework.lacks
    name = key.removeprefix(OPTIONS)
    return name in framework.options and name not in framework.harmless and name not in framework.unmodelled


def _now(context: RuleContext, key: str) -> object:
    """What the plan states, else what was assumed; None where neither says anything."""
    stated = written(context.document, key)
    if stated is not None:
        return stated
    return next((each.value for each in context.resolved.assumptions if each.key == key), None)


def _lower(now: object, values: tuple[tuple[object, str], ...]) -> list[tuple[object, str]]:
    """The values after the plan's own; of a number, those below it, and none where a word stands for the number."""
    if type(values[0][0]) is int and now is not None:
        return [each for each in values if isinstance(now, int) and each[0] < now]  # type: ignore[operator]
    known = [value for value, _ in values]
    return list(values[known.index(now) + 1 :]) if now in known else list(values)


def _always(context: RuleContext, job: TrainingJob) -> bool:
    return True


def _compares(context: RuleContext, job: TrainingJob) -> bool:
    """Whether a second copy of the model runs forward in every step."""
    return any(each.role == "reference" for each in job.companions)


def _gathers_reference(context: RuleContext, job: TrainingJob) -> bool:
    return _compares(context, job) and wraps(job)


def _flattens_adapters(context: RuleContext, job: TrainingJob) -> bool:
    return job.fsdp == 1 and wraps(job) and job.method != "full"


def _sees(context: RuleContext, job: TrainingJob) -> bool:
    return isinstance(job.architecture, Architecture) and job.architecture.vision is not None


def _evaluates(context: RuleContext, job: TrainingJob) -> bool:
    return job.evaluation is not None and "evaluation" in critical(context)


def _steps_in_backward(context: RuleContext, job: TrainingJob) -> bool:
    able = context.framework is not None and context.framework.optimizers.in_backward
    return able and job.gradient_accumulation_steps == 1 and not job.clip_grad_norm


def _sharded(context: RuleContext, job: TrainingJob) -> bool:
    return job.layout.zero_stage == 3


def _stated(name: str) -> Callable[[RuleContext, TrainingJob], bool]:
    """Whether the plan states an option."""
    return lambda context, job: job.option(name) is not None


def _slow_kernels(context: RuleContext, job: TrainingJob) -> bool:
    return job.ssm_kernels == "fallback"


def _quantised(context: RuleContext, job: TrainingJob) -> bool:
    training = context.plan.training
    return training is not None and training.base is not None and training.base.double is False


STATED = (
    "bias_swiglu_fusion",
    "apply_rope_fusion",
    "memory_efficient_layer_norm",
    "deallocate_pipeline_outputs",
    "overlap_grad_reduce",
    "overlap_comm",
    "tp_linear_async_communication",
    "reduce_bucket_size",
    "stage3_param_persistence_threshold",
)
"""Options whose default frees as much as any value: only a plan that states another one can change them."""
READ: dict[str, Callable[[RuleContext, TrainingJob], bool]] = {
    **{f"{OPTIONS}{name}": _stated(name) for name in STATED},
    "training.reference": _compares,
    "training.base.double": _quantised,
    "training.evaluation.logits": _evaluates,
    "training.optimizer.in_backward": _steps_in_backward,
    "training.kernels.ssm": _slow_kernels,
    "training.options.reference_fsdp": _gathers_reference,
    "training.options.wraps_adapters": _flattens_adapters,
    "training.options.vit_gradient_checkpointing": _sees,
    "training.options.stage3_max_live_parameters": _sharded,
    "training.options.suggested_communication_unit_size": _sharded,
    "training.options.fsdp_double_buffer": _sharded,
}
"""Whether a job reads a key; a key that is not listed is read by every job of its frameworks."""
