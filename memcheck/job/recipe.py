"""What a precision recipe means to a framework, and the recipes that frameworks share."""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.job.framework import Framework
from memcheck.job.lookup import Defaults
from memcheck.job.types import Layout, Optimizer, Recipe
from memcheck.plan.types import PrecisionSpec, TrainerSpec


def _uniform(recipe: str, dtype: str) -> Recipe:
    """Return a recipe with everything in one dtype, and without a master copy of the weights."""
    return Recipe(
        recipe=recipe,
        params=dtype,
        compute=dtype,
        gradients=dtype,
        master="none",
        optimizer_states=dtype,
        reduce=dtype,
        autocast=False,
    )


FP32 = _uniform("fp32", "fp32")
BF16_PURE = _uniform("bf16-pure", "bf16")
FP16_PURE = _uniform("fp16-pure", "fp16")

AUTOCAST_BF16 = FP32._replace(recipe="bf16-mixed", compute="bf16", autocast=True)
"""torch.autocast over fp32 weights: the weights are the master copy, casts live from forward to backward."""
AUTOCAST_FP16 = AUTOCAST_BF16._replace(recipe="fp16-mixed", compute="fp16")
AUTOCAST_FP8 = AUTOCAST_BF16._replace(recipe="fp8-mixed")

FSDP2_BF16 = FP32._replace(recipe="bf16-mixed", compute="bf16")
"""``MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32)`` over fp32 shards: units are gathered in bf16."""
FSDP2_FP16 = FSDP2_BF16._replace(recipe="fp16-mixed", compute="fp16")
FSDP2_FP8 = FSDP2_BF16._replace(recipe="fp8-mixed")

GENERIC: dict[str, Recipe] = {
    r.recipe: r for r in (FP32, AUTOCAST_BF16, AUTOCAST_FP16, AUTOCAST_FP8, BF16_PURE, FP16_PURE)
}
"""What a recipe means to PyTorch itself; used to price a plan whose framework does not offer it."""


UPCAST = "accelerate casts what is trained to fp32 before it is sharded, from any dtype"


def resolve_recipe(
    stated: PrecisionSpec | None,
    method: str,
    layout: Layout,
    framework: Framework,
    defaults: Defaults,
    trainer: TrainerSpec | None = None,
    *,
    frozen: tuple[str, ...] | None = None,
) -> Recipe:
    """Return the dtypes of a training: what the named recipe means to this framework and ZeRO stage, and what the plan
    states in addition.

    ``stated``: the plan's ``training.precision``. ``method``: full, lora or qlora. ``frozen``: the plan's ``freeze``.
    """
    stated = stated or PrecisionSpec()
    name = defaults.stated_or("training.precision.recipe", stated.recipe, framework.precisions.default)
    recipe = framework_recipe(name, layout, framework)
    if recipe.autocast:
        recipe, why = framework.replicated_recipe(recipe, layout)
        if why:
            defaults.note("training.precision.compute", recipe.compute, why)
    mixes = method != "full" and recipe.recipe.endswith("-mixed") and stated.params is None
    who = (trainer.name, trainer.version) if trainer is not None else (None, None)
    base, why = framework.frozen_params(recipe.recipe, *who) if mixes else ("", "")
    if base:
        defaults.note("training.precision.params", base, why)
        recipe = recipe._replace(params=base)
        if (
            not framework.sums_gradients_in_buffers and recipe.master == "none"
        ):  # of modules that are trained with the adapters
            recipe = recipe._replace(gradients=base, optimizer_states=base)
    recipe = _deviate(recipe, stated, framework)
    if method == "full" and not frozen and recipe.params != "fp32" and framework.upcasts(recipe, layout):
        defaults.note("training.precision.params", "fp32", UPCAST)
        recipe = recipe._replace(params="fp32", gradients="fp32", optimizer_states="fp32")
    return recipe


def with_optimizer(recipe: Recipe, optimizer: Optimizer, framework: Framework) -> Recipe:
    """Return the recipe with fp32 optimizer states if this optimizer keeps them in fp32 for parameters of any dtype."""
    if keeps_full_states(optimizer, framework):
        return recipe._replace(optimizer_states="fp32")
    return recipe


def keeps_full_states(optimizer: Optimizer, framework: Framework) -> bool:
    """Say whether bitsandbytes keeps the states in 32 bits: ``dtype = torch.float32`` where ``optim_bits`` is 32
    (bitsandbytes ``optim/optimizer.py``, ``init_state``). Lion is its kernel where it is fused.
    """
    if optimizer.name == "lion":
        return optimizer.implementation == "fused" and not framework.optimizers.own_kernels
    return optimizer.name == "paged-adamw"


def framework_recipe(name: str, layout: Layout, framework: Framework) -> Recipe:
    """Return the framework's record of a recipe, or PyTorch's meaning of it where the framework has none (rule
    MEM407).
    """
    if layout.zero_stage == 3 and name in framework.precisions.sharded:
        return framework.precisions.sharded[name]
    return framework.precisions.recipes.get(name) or GENERIC[name]


def _deviate(recipe: Recipe, stated: PrecisionSpec, framework: Framework) -> Recipe:
    """Return the recipe with the dtypes that the plan states, except those that the framework does not have.

    In autograd a gradient has its parameter's dtype (torch/csrc/autograd/engine.cpp, validate_outputs), and optimizer
    states have the dtype of what the optimizer steps on. So both follow the stated dtype of parameters, unless the
    framework has gradients and master weights of its own.
    """
    lacking = [key for key in PrecisionSpec._fields if f"training.precision.{key}" in framework.lacks]
    stated = stated._replace(**dict.fromkeys(lacking))
    recipe = recipe._replace(
        params=stated.params or recipe.params,
        master=stated.master or recipe.master,
        reduce=stated.reduce or recipe.reduce,
    )
    if recipe.master == "remainder" and recipe.params != "bf16":
        raise UnsupportedError(
            f"`master: remainder` is what bf16 parameters lack of fp32, and they rest in {recipe.params}",
            "write `master: fp32`, or rest them in bf16: `params: bf16`",
            "/training/precision/master",
        )
    if not framework.sums_gradients_in_buffers:
        if stated.params is None and stated.master is None:
            return recipe
        stepped = recipe.params if recipe.master == "none" else recipe.master
        stepped = "fp32" if stepped == "remainder" else stepped  # the kernel adds the remainder to bf16 parameters
        return recipe._replace(gradients=recipe.params, optimizer_states=stepped)
    gradients = stated.gradients or recipe.gradients
    if recipe.params == "fp32":
        gradients = "fp32"  # a buffer has the dtype of the parameters or a wider one
    return recipe._replace(gradients=gradients, optimizer_states=stated.optimizer_states or recipe.optimizer_states)
