"""From ``training.objective``, ``reference`` and ``trainer`` to the loss that is estimated, and the other models."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.framework import Framework
from memcheck.job.objective_types import (
    COMPARED,
    DISTILLED,
    LLAMA_FACTORY,
    OPEN_INSTRUCT,
    OWN,
    SCORED,
    SECOND_MODELS,
    TRAINERS,
    Companion,
    Objective,
)
from memcheck.job.types import Checkpointing, Recipe
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types

BORROWED = ("trl", "axolotl")
"""Trainers whose preference losses are TRL's: Axolotl subclasses TRL's trainers (``axolotl/core/trainers``)."""


def resolve_objective(
    training: plan_types.TrainingSpec,
    method: str,
    recipe: Recipe,
    framework: Framework,
    architecture: Architecture | Rough,
    checkpointing: Checkpointing,
    defaults: Defaults,
    *,
    prepared: bool,
) -> Objective:
    """The loss, and whose code computes it. ``prepared``: by accelerate's ``prepare_model``, as FSDP2's are not."""
    stated, trainer = training.objective, training.trainer
    if stated is None and trainer is None and training.reference is None:
        return Objective()
    stated = stated or plan_types.ObjectiveSpec()
    name = defaults.take("training.objective", stated.name, "sft")
    if framework.own_objectives and name in framework.objectives:
        from memcheck.job.own_objective import own_objective

        found = _reference(training.reference, name, method, defaults)
        return own_objective(stated, name, found, recipe, defaults)
    from memcheck.job.trainer_code import TRL_BETA, trainer_code

    usual = "transformers" if name == "sft" else "trl"
    who = defaults.take("training.trainer.name", trainer.name if trainer else None, usual)
    version = trainer.version if trainer else None
    code = trainer_code(training, name, who, version, architecture, checkpointing, defaults)
    prompt = 0
    # those score every token of the longest completion's rows, and mask the prompt's
    if name in (*SCORED, *DISTILLED) and code not in TRAINERS:
        why = "the length of the prompt is unknown: every token is scored"
        prompt = defaults.take("training.objective.prompt_length", stated.prompt_length, 0, why)
    beta = 0.5
    if name in DISTILLED:
        beta = defaults.take("training.objective.beta", stated.beta, TRL_BETA[name], "default of TRL")
    return Objective(
        name=name,
        beta=beta,
        code=code,
        prompt_length=prompt,
        reference=_reference(training.reference, name, method, defaults, cached=code == OPEN_INSTRUCT),
        wide_outputs=framework.wide_outputs and recipe.recipe.endswith("-mixed") and prepared,
    )


def _reference(stated: str | None, name: str, method: str, defaults: Defaults, *, cached: bool = False) -> str:
    if name not in COMPARED:
        return "none"
    if cached:
        why = "open-instruct scores all pairs once, before it trains"
        return defaults.take("training.reference", stated, "precomputed", why)
    if method != "full":
        why = "the reference is the model without its adapters"
        return defaults.take("training.reference", stated, "adapter-off", why)
    return defaults.take("training.reference", stated, "resident", "the reference is a second copy of the model")


def resolve_companions(
    objective: Objective,
    architecture: Architecture | Rough,
    recipe: Recipe,
    parameter_offload: str,
    teacher: Architecture | Rough | None,
) -> tuple[Companion, ...]:
    """The models in addition to the trained one. A reference is as wide as that; FSDP2 offloads both or none."""
    if objective.name in DISTILLED and isinstance(teacher, Architecture):
        place = "host" if objective.code == OWN and parameter_offload != "none" else "device"
        return (Companion(role="teacher", architecture=teacher, place=place, dtype=recipe.params),)
    if objective.reference not in SECOND_MODELS or not isinstance(architecture, Architecture):
        return ()
    host = objective.reference == "host" or parameter_offload != "none"
    # LLaMA-Factory upcasts what it trains; a reference stays as its checkpoint is, in 16 bits (model/loader.py)
    narrow = objective.code == LLAMA_FACTORY and recipe.compute in ("bf16", "fp16")
    dtype = recipe.compute if narrow else recipe.params
    return (Companion(role="reference", architecture=architecture, place="host" if host else "device", dtype=dtype),)
