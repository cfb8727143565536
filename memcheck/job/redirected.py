"""The dtypes of TRL's distillation, whose forward is none that accelerate has prepared."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.types import Recipe


def without_autocast(recipe: Recipe, defaults: Defaults) -> Recipe:
    """The recipe in whose dtypes both models run.

    The trainer puts a method of its own in the place of the forward around which accelerate has put autocast (TRL 1.16
    models/utils.py, ``_ForwardRedirection``; trainer/distillation_trainer.py, ``compute_loss``).
    """
    if not recipe.autocast:
        return recipe
    why = "TRL's distillation goes past the forward that accelerate has put autocast around"
    defaults.note("training.precision.compute", recipe.params, why)
    name = "fp32" if recipe.params == "fp32" else f"{recipe.params}-pure"
    return recipe._replace(recipe=name, autocast=False, compute=recipe.params)
