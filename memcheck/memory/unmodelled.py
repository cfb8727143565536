"""What a framework cannot build, or builds in a way that has no model: an error, never a guess.

Plans that are too large to be walked in a moment are refused as well.
"""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.framework import PEFT_VARIANTS, Framework
from memcheck.job.lookup import FORMS, OUTSIDE, Families, stated
from memcheck.job.types import InferenceJob, Lora, TrainingJob
from memcheck.models.types import Architecture

POINTER = "/training/framework"
REMEMBERED = 512
_priced: dict[tuple[int, Framework], Architecture] = {}
"""By identity of the architecture, which takes longer to hash than to look through."""


def refuse(job: TrainingJob) -> None:
    """Check that memcheck has a memory model of a job's architecture, adapters and framework options.

    Raises:
        UnsupportedError: one of them has no memory model.
    """
    if isinstance(job.architecture, Architecture):
        refuse_model(job.framework, job.architecture)
        if job.architecture.vision is not None or job.architecture.encoder is not None or job.architecture.others:
            from memcheck.memory.unmodelled_parts import refuse_parts

            refuse_parts(job, job.architecture)
    framework = job.framework
    for name, value in job.options:
        if name not in framework.unmodelled:
            continue
        modelled_value, effect = framework.unmodelled[name]
        if value != modelled_value and (value or modelled_value):
            message = f"`{name}` {effect}, of which memcheck has no model"
            raise UnsupportedError(message, "leave it out to get the figure without it", f"/training/options/{name}")
    if job.lora is not None:
        refuse_adapters(job.lora, framework, apart=job.layout.expert > 1)
    if job.option("quantize_experts", default=False):
        from memcheck.frameworks.transformers.quantised_experts import refuse_experts

        refuse_experts(job)
    if job.option("quantizer") and framework.runs_transformers:
        from memcheck.frameworks.transformers.quantised_experts import refuse_quantizer

        refuse_quantizer(job)
    if job.liger:
        from memcheck.frameworks.transformers.liger import refuse_liger

        refuse_liger(job, framework.title, [known.name for known in FRAMEWORKS.values() if known.runs_transformers])


def refuse_adapters(lora: Lora, framework: Framework, *, apart: bool = False) -> None:
    """Check that the framework's adapters are modelled with every key that the plan states.

    ``apart``: experts are on several ranks, where NeMo AutoModel adapts them. Then only DoRA is refused
    (``components/_peft/lora.py``, apply_lora_to_linear_modules).

    Raises:
        UnsupportedError: they are not modelled, or peft refuses them together (tuners/lora/layer.py, ParamWrapper).
    """
    for key in PEFT_VARIANTS:
        if getattr(lora, key) and key not in framework.adapters.variants:
            message = f"memcheck has no model of adapters with `{key}` under {framework.title}"
            raise UnsupportedError(message, "leave it out to get the figure without it", f"/training/lora/{key}")
    if lora.expert_rank and not lora.target_parameters:
        message = "`expert_rank` is that of `target_parameters`, and the plan names none"
        raise UnsupportedError(message, "name the experts' matrices, or leave it out", "/training/lora/expert_rank")
    for key in ("dora",) if apart else ("dropout", "dora"):
        if lora.target_parameters and getattr(lora, key):
            message = f"peft refuses `{key}` with `target_parameters`, whose adapters are added to the weights"
            if apart:
                message = f"NeMo AutoModel refuses `{key}` with adapters of experts"
            raise UnsupportedError(message, f"remove `{key}` or `target_parameters`", f"/training/lora/{key}")


def refuse_model(framework: Framework, architecture: Architecture) -> None:
    """Check that the framework builds this family and that every part of its layers has a forward pass.

    Raises:
        UnsupportedError: it does not, or a part has no forward pass. The error lies at ``training.framework``.
    """
    key = (id(architecture), framework)
    if _priced.get(key) is architecture:
        return
    able, title = framework.families, framework.title
    if architecture.model_type not in able.names:
        raise UnsupportedError(
            f"memcheck has no model of {architecture.model_type} under {title}, but of {', '.join(able.names)}",
            _others(architecture),
            POINTER,
        )
    if unread := unpriced(able, architecture):
        raise UnsupportedError(
            f"memcheck has no model of {', '.join(unread)} of this {architecture.model_type} model under {title}",
            _others(architecture),
            POINTER,
        )
    if len(_priced) >= REMEMBERED:
        _priced.clear()
    _priced[key] = architecture


def unpriced(able: Families, architecture: Architecture) -> tuple[str, ...]:
    """List the parts of the model that the framework's forward pass does not read, as ``Record.field``."""
    if able.parts is None:
        return ()
    of_model = {f"Architecture.{field}" for field in OUTSIDE if getattr(architecture, field)}
    for block, _ in architecture.blocks:
        of_model.update(stated(block))
    return tuple(sorted(of_model - able.parts - able.harmless - FORMS))


def _or(names: list[str]) -> str:
    """Return a list of names as the end of a sentence: ``, or with A, B``; empty without names."""
    return f", or with {', '.join(names)}" if names else ""


def _others(architecture: Architecture) -> str:
    """Say, for an error's help, under which frameworks memcheck can estimate this model."""
    able = [
        framework.name
        for framework in FRAMEWORKS.values()
        if architecture.model_type in framework.families.names and not unpriced(framework.families, architecture)
    ]
    if not able:
        return "exclude the plan"
    return f"memcheck can estimate this model with `training.framework: {able[0]}`{_or(able[1:])}"


PIPELINE = 256
"""Pipeline ranks. Each one is walked: no two of them hold the same number of micro-batches."""
NAMES = 256
"""Names in one list of modules. Each one is compared with every tensor of every unit."""


def refuse_extremes(job: TrainingJob | InferenceJob) -> None:
    """Refuse a job that would take too long to estimate, with more ranks or names than any real plan has.

    Raises:
        UnsupportedError: there are more pipeline ranks, or longer lists of names, than are walked in a moment.
    """
    if job.layout.pipeline > PIPELINE:
        raise UnsupportedError(
            f"pipeline {job.layout.pipeline:,} is above {PIPELINE}, up to which pipeline ranks are estimated",
            f"split the layers over at most {PIPELINE} pipeline ranks",
            "/parallelism/pipeline",
        )
    if isinstance(job, InferenceJob):
        return
    if len(job.freeze) > NAMES:
        raise UnsupportedError(
            f"`freeze` has {len(job.freeze):,} entries, more than the {NAMES} up to which they are estimated",
            "join neighbouring layers as layers:FIRST-LAST, and name modules without their layer",
            "/training/freeze",
        )
    targets = job.lora.target_modules if job.lora is not None else ()
    if not isinstance(targets, str) and len(targets) > NAMES:
        raise UnsupportedError(
            f"`lora.target_modules` has {len(targets):,} entries, more than the {NAMES} up to which they are estimated",
            "name modules without the path to their layer, or write all-linear",
            "/training/lora/target_modules",
        )
