"""From a named precision to dtypes."""

from __future__ import annotations

import pytest

from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.lookup import Defaults
from memcheck.job.recipe import resolve_recipe, with_optimizer
from memcheck.job.types import Layout, Optimizer, Recipe
from memcheck.plan.types import PrecisionSpec

SHARDED = Layout(gpus_per_node=8, data=8, zero_stage=3, shard_group=8)


def recipe(framework: str, layout: Layout | None = None, method: str = "full", **stated: str) -> Recipe:
    """The recipe of a plan that states these parts of its precision."""
    return resolve_recipe(
        PrecisionSpec(**stated), method, layout or Layout(gpus_per_node=8, data=8), FRAMEWORKS[framework], Defaults()
    )


@pytest.mark.parametrize("framework", ["pytorch", "huggingface", "torchtitan"])
def test_autocast_ends_where_full_sharding_begins(framework: str) -> None:
    """bf16-mixed is autocast over fp32 weights when replicated and FSDP2's mixed precision when sharded."""
    replicated, sharded = recipe(framework, recipe="bf16-mixed"), recipe(framework, SHARDED, recipe="bf16-mixed")
    assert replicated.autocast
    assert not sharded.autocast
    reduce = "bf16" if framework == "huggingface" else "fp32"  # accelerate's policy has one dtype for both
    assert replicated._replace(autocast=False, reduce=reduce) == sharded


def test_torchtitan_computes_tensor_parallel_layers_in_fp32_without_fsdp() -> None:
    """torchtitan's autocast stands back for tensor and pipeline parallelism, so the step runs in fp32."""
    found = recipe("torchtitan", Layout(gpus_per_node=8, data=2, tensor=4), recipe="bf16-mixed")
    assert (found.compute, found.autocast) == ("fp32", False)
    assert recipe("pytorch", Layout(gpus_per_node=8, data=2, tensor=4), recipe="bf16-mixed").compute == "bf16"


def test_gradients_and_states_follow_the_parameters() -> None:
    """In autograd a bf16 parameter has bf16 gradients and bf16 states; autocast stays on for what is fp32."""
    found = recipe("huggingface", recipe="bf16-mixed", params="bf16")
    assert (found.gradients, found.optimizer_states, found.master, found.autocast) == ("bf16", "bf16", "none", True)


def test_a_stated_master_keeps_the_states_in_its_dtype() -> None:
    """States follow the master copy where there is one."""
    found = recipe("pytorch", recipe="bf16-mixed", params="bf16", master="fp32")
    assert (found.gradients, found.optimizer_states) == ("bf16", "fp32")


def test_remainders_make_fp32_of_bf16_parameters_and_of_no_others() -> None:
    """TransformerEngine keeps whole masters of all that is not bf16."""
    found = recipe("pytorch", recipe="bf16-pure", master="remainder")
    assert (found.params, found.gradients, found.optimizer_states) == ("bf16", "bf16", "fp32")
    with pytest.raises(UnsupportedError, match="rest in fp32"):
        recipe("pytorch", recipe="bf16-mixed", master="remainder")


def test_main_gradients_stay_with_frameworks_that_have_them() -> None:
    """Megatron and DeepSpeed keep what the plan does not state."""
    assert recipe("megatron", recipe="bf16-mixed", gradients="bf16") == FRAMEWORKS["megatron"].precisions.recipes[
        "bf16-mixed"
    ]._replace(gradients="bf16")
    assert recipe("megatron", recipe="fp32", gradients="bf16") == FRAMEWORKS["megatron"].precisions.recipes["fp32"]
    assert recipe("deepspeed", recipe="bf16-mixed", params="bf16").master == "fp32"


@pytest.mark.parametrize("framework", ["pytorch", "huggingface", "torchtitan", "litgpt", "torchtune", "deepspeed"])
@pytest.mark.parametrize("layout", [Layout(gpus_per_node=8, data=8), SHARDED])
@pytest.mark.parametrize("key", ["gradients", "optimizer_states"])
def test_no_key_lowers_what_autograd_and_torch_make(framework: str, layout: Layout, key: str) -> None:
    """Gradients and states have the dtype of the parameters, whatever else a plan states."""
    named = FRAMEWORKS[framework].precisions.default
    assert recipe(framework, layout, recipe=named, **{key: "fp16"}) == recipe(framework, layout, recipe=named)


@pytest.mark.parametrize(
    ("framework", "key"), [("deepspeed", "master"), ("megatron", "master"), ("torchtitan", "reduce")]
)
def test_a_key_that_a_framework_lacks_changes_nothing(framework: str, key: str) -> None:
    """Its default holds, and rule MEM408 reports the key."""
    value = {"master": "none", "reduce": "bf16"}[key]
    assert recipe(framework, SHARDED, recipe="bf16-mixed", **{key: value}) == recipe(
        framework, SHARDED, recipe="bf16-mixed"
    )


@pytest.mark.parametrize(
    ("framework", "name", "implementation", "states"),
    [
        ("pytorch", "paged-adamw", "fused", "fp32"),
        ("pytorch", "lion", "fused", "fp32"),
        ("pytorch", "lion", "for-loop", "bf16"),
        ("pytorch", "adamw", "foreach", "bf16"),
        ("deepspeed", "lion", "fused", "bf16"),
    ],
)
def test_bitsandbytes_keeps_32_bits(framework: str, name: str, implementation: str, states: str) -> None:
    """Its states of 32 bits are fp32 whatever they belong to; torch's are like the parameters."""
    of = FRAMEWORKS[framework]
    found = with_optimizer(recipe(framework, recipe="bf16-pure"), Optimizer(name, implementation), of)
    assert found.optimizer_states == states


def test_reduce_dtype_is_free() -> None:
    """The dtype of the reduction can be stated alone."""
    assert recipe("pytorch", SHARDED, recipe="bf16-pure", reduce="fp32").reduce == "fp32"


def test_a_frozen_base_rests_in_16_bits_under_the_trainer() -> None:
    """The Trainer's stacks load a LoRA base in its checkpoint's dtype; a plain loop does what the recipe says."""
    assert recipe("huggingface", method="lora", recipe="bf16-mixed").params == "bf16"
    assert recipe("pytorch", method="lora", recipe="bf16-mixed").params == "fp32"
    assert recipe("huggingface", method="lora", recipe="fp32").params == "fp32"


def test_a_foreign_recipe_is_priced_as_pytorch_means_it() -> None:
    """A recipe that the framework lacks still resolves, for the rule to report."""
    assert recipe("megatron", recipe="bf16-pure").params == "bf16"
