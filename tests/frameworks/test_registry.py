"""The frameworks' records hold together and name what upstream names."""

from __future__ import annotations

import json

import pytest

from memcheck.frameworks.registry import FRAMEWORKS, timing_of
from memcheck.job.framework import Framework
from memcheck.job.recipe import GENERIC
from memcheck.job.resolve import DEFAULT_FRAMEWORK
from memcheck.job.types import DTYPE_BYTES
from memcheck.plan.schema import load_schema

EACH = pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=list(FRAMEWORKS))


def words(*path: str) -> set[str]:
    """The words that the plan's schema allows at a definition."""
    node = load_schema()["definitions"]
    for part in path:
        node = node[part]
    found = set(node.get("enum", ()))
    for branch in node.get("anyOf", ()):
        found |= set(branch.get("enum", ()))
    return found


def test_stages_that_a_framework_has() -> None:
    """Which parts of the training state it can divide: FSDP2 has no stage 2, and torchtune and LitGPT no stage 1."""
    able = {"torch": (0, 1, 3), "fsdp1": (0, 3), "fsdp2": (0, 3)}
    for each in FRAMEWORKS.values():
        assert set(each.parallelism.zero_stages) <= set(able.get(each.data_parallel, (0, 1, 2, 3)))


def test_registry_is_what_the_schema_offers() -> None:
    """A plan can name every framework of the registry and no other."""
    assert words("training", "properties", "framework") == set(FRAMEWORKS)
    assert load_schema()["definitions"]["training"]["properties"]["framework"]["default"] == DEFAULT_FRAMEWORK


@EACH
def test_nobody_builds_what_is_anothers_own(framework: Framework) -> None:
    """A family that a framework builds is nobody else's own: its plans need not be held against other frameworks."""
    others = [name for each in FRAMEWORKS.values() if each is not framework for name in each.families.own]
    assert set(framework.families.names).isdisjoint(others)


@EACH
def test_recipes_are_named_after_themselves(framework: Framework) -> None:
    """A recipe stands under its own name, in dtypes with a size."""
    for name, recipe in {**framework.precisions.recipes, **framework.precisions.sharded}.items():
        assert recipe.recipe == name
        assert name in GENERIC
        sized = (recipe.params, recipe.compute, recipe.gradients, recipe.optimizer_states, recipe.reduce)
        assert all(dtype in DTYPE_BYTES for dtype in sized)
        assert recipe.master == "none" or recipe.master in DTYPE_BYTES


@EACH
def test_defaults_are_among_the_abilities(framework: Framework) -> None:
    """What a framework does by default is something that it can do."""
    assert framework.precisions.default in framework.precisions.recipes
    assert framework.losses.default in framework.losses.kinds
    assert framework.default_attention in framework.attentions
    assert 0 in framework.parallelism.zero_stages
    assert {"none", "full"} <= set(framework.recompute)
    assert "full" in framework.methods


@EACH
def test_abilities_are_words_of_the_plan(framework: Framework) -> None:
    """Abilities use the plan's own words, so that a rule can compare them with a plan."""
    parallelism = set(load_schema()["definitions"]["parallelism"]["properties"])
    assert set(framework.parallelism.degrees) <= parallelism
    assert set(framework.losses.kinds) <= words("loss")
    assert set(framework.attentions) <= words("training", "properties", "attention")
    assert set(framework.recompute) <= words("activation_checkpointing")
    assert set(framework.optimizers.by_name) <= words("optimizer")
    assert set(framework.optimizers.by_name.values()) <= words("optimizer_record", "properties", "implementation")


@EACH
def test_facts_are_said_in_known_words(framework: Framework) -> None:
    """A misspelt word would quietly mean that a stack does none of what the others do."""
    timing = timing_of(framework)
    assert framework.data_parallel in ("torch", "fsdp1", "fsdp2", "zero", "distributed-optimizer")
    assert framework.selective_recompute in ("", "operators", "modules")
    assert framework.context_parallel in ("ring", "ulysses")
    assert {*framework.load_and_save.initialization, *framework.load_and_save.other_places} <= words("initialization")
    assert set(framework.offload_places) <= words("optimizer_record", "properties", "offload")
    assert not framework.selective_recompute or "selective" in framework.recompute
    assert timing.latent_input_tokens in ("own", "gathered", "exchanged")


@EACH
def test_choices_belong_to_options(framework: Framework) -> None:
    """Choices are listed only for options that exist, and are of a type that these take."""
    for name, choices in framework.choices.items():
        assert choices
        assert {type(each) for each in choices} <= set(framework.options[name])
    json.dumps(sorted(framework.options))


@pytest.mark.parametrize(
    ("framework", "recipe", "resting"),
    [
        ("pytorch", "bf16-mixed", 4 + 4 + 8),
        ("pytorch", "bf16-pure", 2 + 2 + 4),
        ("huggingface", "bf16-mixed", 4 + 4 + 8),
        ("torchtitan", "bf16-mixed", 4 + 4 + 8),
        ("megatron", "bf16-mixed", 2 + 4 + 4 + 8),
        ("megatron", "fp32", 4 + 4 + 8),
        ("deepspeed", "bf16-mixed", 2 + 2 + 4 + 8),
        ("deepspeed", "bf16-pure", 2 + 2 + 2 + 4),
    ],
)
def test_bytes_per_parameter(framework: str, recipe: str, resting: int) -> None:
    """Parameters, gradients, master copy and both Adam states take the bytes that each stack documents."""
    record = FRAMEWORKS[framework].precisions.recipes[recipe]
    size = {**DTYPE_BYTES, "none": 0}
    states = 2 * size[record.optimizer_states]
    assert size[record.params] + size[record.gradients] + size[record.master] + states == resting


def test_only_replicated_torch_recipes_autocast() -> None:
    """Autocast belongs to fp32 weights that are not fully sharded."""
    for framework in FRAMEWORKS.values():
        assert not any(recipe.autocast for recipe in framework.precisions.sharded.values())
        for recipe in framework.precisions.recipes.values():
            assert not recipe.autocast or recipe.params == "fp32"


GROUPS = ("precisions", "optimizers", "losses", "parallelism", "adapters", "load_and_save")
"""Fields of a profile that are records of what belongs together."""


def test_a_field_has_two_users() -> None:
    """What one framework alone sets is a hook in its folder, a method of ``Framework``, and no field of a record."""
    records = {"": list(FRAMEWORKS.values())}
    records |= {f"{group}.": [getattr(each, group) for each in FRAMEWORKS.values()] for group in GROUPS}
    users = {
        f"{prefix}{field}": sum(getattr(record, field) != default for record in found)
        for prefix, found in records.items()
        for field, default in found[0]._field_defaults.items()
    }
    assert {field: count for field, count in users.items() if count < 2} == {}
    assert len(Framework._fields) <= 40


def test_an_override_is_a_hook() -> None:
    """What a framework's folder overrides stands in ``Framework`` with a default, so that shared code can ask all."""
    hooks = set(vars(Framework))
    own = {name for each in FRAMEWORKS.values() if type(each) is not Framework for name in vars(type(each))}
    assert len(own) > 20
    assert {name for name in own if not name.startswith("_")} <= hooks
