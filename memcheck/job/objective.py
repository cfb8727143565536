"""From ``training.objective``, ``reference`` and ``trainer`` to the loss that is priced, and the models beside it."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.objective_types import (
    COMPARED,
    DISTILLED,
    LLAMA_FACTORY,
    OWN,
    SCORED,
    SECOND_MODELS,
    Companion,
    Objective,
)
from memcheck.job.profile import Profile
from memcheck.job.types import Checkpointing, Layout, Recipe
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types

BORROWED = ("trl", "axolotl")
"""Trainers whose preference losses are TRL's: Axolotl subclasses TRL's trainers (``axolotl/core/trainers``)."""
OWN_LOSSES = {"llama-factory": (*COMPARED, "orpo", "simpo"), "ms-swift": (), "open-instruct": ()}
"""Trainers with losses of their own, each with the objectives whose losses have a model here."""
FUSED_HEAD = (1, 15)
"""The first TRL whose log-probabilities come from a fused head (``add_fused_lm_head``)."""
NEWER, OLDER = "trl-0.29", "trl-0.24"
FUSED = "trl-1.15"
TRL_BETA = {"gkd": 0.5, "distill": 1.0}
OF_EVERY_VERSION = ("orpo", "simpo", "cpo")
"""Objectives whose losses are the same lines in every version, from 1.15 on too (``trl/experimental``)."""


def resolve_objective(
    training: plan_types.TrainingSpec,
    method: str,
    recipe: Recipe,
    layout: Layout,
    framework: Profile,
    architecture: Architecture | Rough,
    checkpointing: Checkpointing,
    defaults: Defaults,
) -> Objective:
    """The loss, and whose code computes it."""
    stated, trainer = training.objective, training.trainer
    if stated is None and trainer is None and training.reference is None:
        return Objective()
    stated = stated or plan_types.ObjectiveSpec()
    name = defaults.take("training.objective", stated.name, "sft")
    if framework.own_objectives and name in framework.objectives:
        return _own(training, stated, name, method, recipe, defaults)
    usual = "transformers" if name == "sft" else "trl"
    who = defaults.take("training.trainer.name", trainer.name if trainer else None, usual)
    version = trainer.version if trainer else None
    code = _code(training, name, who, version, architecture, checkpointing, defaults)
    prompt = 0
    if name in (*SCORED, *DISTILLED) and code != LLAMA_FACTORY:  # which scores every token, and masks the prompt's
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
        reference=_reference(training.reference, name, method, defaults),
        # accelerate's prepare_model wraps the forward; under FSDP2 the model never passes through it (accelerator.py,
        # _prepare_fsdp2)
        wide_outputs=framework.wide_outputs and recipe.recipe.endswith("-mixed") and layout.zero_stage < 2,
    )


def _own(
    training: plan_types.TrainingSpec,
    stated: plan_types.ObjectiveSpec,
    name: str,
    method: str,
    recipe: Recipe,
    defaults: Defaults,
) -> Objective:
    """The loss of a recipe of the framework's own, which scores every token, and masks those of the prompt."""
    if name == "sft":
        return Objective()
    beta = 0.5
    if name in DISTILLED:
        beta = defaults.take("training.objective.beta", stated.beta, 0.0, "the forward divergence, as in its configs")
    reference = _reference(training.reference, name, method, defaults)
    return Objective(name=name, beta=beta, code=OWN, reference=reference, wide_outputs=recipe.params != "fp32")


def _code(
    training: plan_types.TrainingSpec,
    name: str,
    who: str,
    version: str | None,
    architecture: Architecture | Rough,
    checkpointing: Checkpointing,
    defaults: Defaults,
) -> str:
    """Whose lines compute the loss. Empty: the model's own."""
    key = "training.trainer.version"
    if name == "sft" and (who != "trl" or (training.loss is not None and training.loss.kind not in (None, "standard"))):
        return ""  # with Liger's loss there are no logits whose metrics could be taken
    if who == LLAMA_FACTORY and name in OWN_LOSSES[who]:
        return LLAMA_FACTORY
    if name in OF_EVERY_VERSION or name == "reward":
        return NEWER
    if name in DISTILLED:
        return _distilling(name, _numbers(version), defaults)
    numbers = _numbers(version) if who == "trl" else None
    if numbers is None:
        code = _worst(name, architecture, checkpointing)
        defaults.note(key, f"as of TRL {code.partition('-')[2]}", "unknown: the lines that need most memory")
        return code
    if numbers >= FUSED_HEAD:
        return FUSED
    if name in ("dpo", "ipo") and (0, 15) <= numbers < (0, 29):
        return OLDER
    if numbers[0] == 1 or numbers < (0, 24):
        why = "these lines differ from version to version, and keep no more than TRL 0.29's"
        defaults.note(key, "as of TRL 0.29", why)
    return NEWER


def _distilling(name: str, numbers: tuple[int, int] | None, defaults: Defaults) -> str:
    """GKD scores completions alone before TRL 1.0, and whole rows since; a distillation trainer came with its tiles."""
    if name == "gkd" and numbers is not None and numbers < (1, 0):
        return NEWER
    if numbers is None or numbers < FUSED_HEAD:
        defaults.note("training.trainer.version", "as of TRL 1.16", "the lines that need most memory")
    return FUSED


def _worst(name: str, architecture: Architecture | Rough, checkpointing: Checkpointing) -> str:
    """The lines that need most memory where the version is unknown.

    TRL 0.29 keeps at least six bytes more of every logit than TRL 0.24, which asks for the hidden states of all layers:
    those are the inputs that recomputed layers keep anyway.
    """
    if name not in ("dpo", "ipo") or checkpointing.mode == "full" or not isinstance(architecture, Architecture):
        return NEWER
    states = 2 * architecture.hidden_size * (architecture.num_layers + 1)
    return OLDER if states > 6 * architecture.vocab_size else NEWER


def _numbers(version: str | None) -> tuple[int, int] | None:
    if not version:
        return None
    import re

    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return None if found is None else (int(found[1]), int(found[2] or 0))


def _reference(stated: str | None, name: str, method: str, defaults: Defaults) -> str:
    if name not in COMPARED:
        return "none"
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
    """The models beside the one that is trained. A reference is as wide as that; FSDP2 offloads both or none."""
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
