"""Objectives whose losses are recipes of the framework's own, and no trainer's."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.objective_types import DISTILLED, OWN, Objective
from memcheck.job.types import Recipe
from memcheck.plan import types as plan_types


def own_objective(
    stated: plan_types.ObjectiveSpec, name: str, reference: str, recipe: Recipe, defaults: Defaults
) -> Objective:
    """The loss of such a recipe, which scores every token, and masks those of the prompt."""
    if name == "sft":
        return Objective()
    beta = 0.5
    if name in DISTILLED:
        beta = defaults.take("training.objective.beta", stated.beta, 0.0, "the forward divergence, as in its configs")
    return Objective(name=name, beta=beta, code=OWN, reference=reference, wide_outputs=recipe.params != "fp32")
