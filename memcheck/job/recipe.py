"""From ``training.precision`` to the dtype of every part of the training state."""

from __future__ import annotations

from memcheck.frameworks.recipes import GENERIC
from memcheck.frameworks.types import Framework
from memcheck.job.defaults import Defaults
from memcheck.job.types import Layout, Recipe
from memcheck.plan.types import Precision


def resolve_recipe(
    stated: Precision | None, method: str, layout: Layout, framework: Framework, defaults: Defaults
) -> Recipe:
    """What the named recipe means to this framework at this ZeRO stage, with the plan's deviations applied."""
    stated = stated or Precision()
    name = defaults.take("training.precision.recipe", stated.recipe, framework.default_precision)
    recipe = framework_recipe(name, layout, framework)
    if recipe.autocast and framework.replicated_amp_alone and layout.tensor * layout.pipeline > 1:
        # torchtitan/distributed/utils.py: no autocast context with tensor or pipeline parallelism but without FSDP.
        why = f"{framework.name} applies mixed precision with tensor or pipeline parallelism only at zero_stage 3"
        defaults.note("training.precision.compute", "fp32", why)
        recipe = recipe._replace(compute="fp32", autocast=False)
    if (
        method != "full"
        and recipe.recipe.endswith("-mixed")
        and stated.params is None
        and framework.name == "huggingface"
    ):
        # Trainer-based stacks load the frozen base in its checkpoint's 16-bit dtype (transformers v5: dtype="auto").
        base = "fp16" if recipe.recipe == "fp16-mixed" else "bf16"
        defaults.note("training.precision.params", base, "the frozen base rests in its checkpoint's 16-bit dtype")
        recipe = recipe._replace(params=base)
    return _deviate(recipe, stated, framework)


def framework_recipe(name: str, layout: Layout, framework: Framework) -> Recipe:
    """The framework's record of a recipe, or PyTorch's meaning of it where the framework has none (rule MEM407)."""
    if layout.zero_stage == 3 and name in framework.sharded_recipes:
        return framework.sharded_recipes[name]
    return framework.recipes.get(name) or GENERIC[name]


def _deviate(recipe: Recipe, stated: Precision, framework: Framework) -> Recipe:
    """Apply what the plan states beside the recipe.

    In autograd a gradient has its parameter's dtype and the optimizer's states follow what it steps on, so those move
    along unless the framework keeps separate main gradients and master weights of its own.
    """
    params = stated.params or recipe.params
    master = stated.master or recipe.master
    gradients, states = recipe.gradients, recipe.optimizer_states
    follows = framework.recipes.get(recipe.recipe, recipe).master == "none"
    if follows and stated.params is not None:
        gradients = params
        states = params if master == "none" else master
    return recipe._replace(
        params=params,
        master=master,
        gradients=stated.gradients or gradients,
        optimizer_states=stated.optimizer_states or states,
        reduce=stated.reduce or recipe.reduce,
    )
