"""From ``training.lora`` to the adapters of a job."""

from __future__ import annotations

from memcheck.job.defaults import PLAN_DEFAULT, Defaults
from memcheck.job.framework import Framework
from memcheck.job.recipe import UPCAST
from memcheck.job.types import Lora, Recipe
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types

PATTERN = frozenset("\\*+?[](){}|^$")
"""Characters that make a text of adapters' targets a pattern: a name, or the end of a path, has none of them."""


def resolve_lora(
    training: plan_types.TrainingSpec,
    framework: Framework,
    recipe: Recipe,
    architecture: Architecture | Rough,
    defaults: Defaults,
    upcast: bool = False,
) -> Lora:
    """Adapters of a LoRA or QLoRA job. ``upcast``: in fp32 in the end."""
    stated = training.lora or plan_types.LoraSpec()
    targets, own = framework.adapters.targets, PLAN_DEFAULT
    dtype, why = "fp32", "default of PEFT: adapters are kept in fp32"
    lacks = "training.lora.dtype" in framework.lacks
    if framework.adapters.dtype == "params":
        dtype, why = recipe.params, f"default of {framework.name}"
        own = own if lacks else why
    if upcast and stated.dtype not in (None, "fp32"):
        lacks, dtype, why = True, "fp32", UPCAST
    found = Lora(
        rank=defaults.take("training.lora.rank", stated.rank, framework.adapters.rank, own),
        target_modules=defaults.take("training.lora.target_modules", stated.target_modules, targets, own),
        dtype=defaults.take("training.lora.dtype", None if lacks else stated.dtype, dtype, why),
        parts=stated.parts or (),
        dropout=float(defaults.take("training.lora.dropout", stated.dropout, 0, own)),
        dora=bool(stated.dora),
        modules_to_save=tuple(sorted(set(stated.modules_to_save or ()))),
        target_parameters=stated.target_parameters or (),
        expert_rank=stated.expert_rank or 0,
    )
    if isinstance(found.target_modules, str) and PATTERN.intersection(found.target_modules):
        from memcheck.job.lora_patterns import with_reach

        return with_reach(found, architecture, framework)
    return found
