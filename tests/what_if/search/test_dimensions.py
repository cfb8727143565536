"""Everything that a remedy may change is in the spaces of every framework that has it, and legal in one of its plans."""

from __future__ import annotations

from functools import cache

import pytest

from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.space import singles, space_of
from tests.what_if.search.contexts import SERVING, context_of

PLAN = """\
memcheck: 1
model: {model}
hardware: {{gpu: a100-40gb, gpus_per_node: 8, nodes: {nodes}}}
parallelism: {{{parallelism}}}
training:
  framework: {framework}
  micro_batch_size: 4
  sequence_length: 8192
  gradient_accumulation_steps: 8
{more}
"""
ALL = frozenset(FRAMEWORKS)
SHARDED = ALL - {"nanotron"}
CUT = frozenset({"pytorch", "torchtitan", "megatron"})
PIPES = CUT | {"nanotron"}
CONTEXT = CUT | {"huggingface", "deepspeed"}
TENSOR = CONTEXT | {"nanotron"}
FSDP = frozenset({"pytorch", "huggingface", "torchtitan", "litgpt", "torchtune"})
METHODS = SHARDED  # nanotron trains all of a model
ADAPTERS = METHODS - {"torchtitan", "megatron"}
MIXTURES = frozenset({"torchtitan", "megatron"})
NO_MIXTURES = frozenset({"litgpt", "torchtune", "nanotron"})
DENSE, MIXTURE = "llama-3.1-8b", "mixtral-8x7b"
PIPE = "parallelism.pipeline_schedule"
MODE = "training.activation_checkpointing.mode"

Case = tuple[str, object, frozenset[str], str, str, str]
DIMENSIONS: dict[str, Case] = {
    "sharding": ("parallelism.zero_stage", 3, SHARDED, DENSE, "zero_stage: 0", ""),
    "shard group": (
        "parallelism.shard_group",
        16,
        FSDP - {"litgpt", "torchtune"},
        DENSE,
        "zero_stage: 3, shard_group: 8",
        "",
    ),
    "gathered weights": (
        "parallelism.reshard_after_forward",
        True,
        FSDP - {"litgpt"},
        DENSE,
        "zero_stage: 3, reshard_after_forward: false",
        "",
    ),
    "tensor": ("parallelism.tensor", 2, TENSOR, DENSE, "", ""),
    "sequence": (
        "parallelism.sequence",
        True,
        frozenset({"pytorch", "megatron"}),
        DENSE,
        "tensor: 4, sequence: false",
        "",
    ),
    "context": ("parallelism.context", 2, CONTEXT, DENSE, "zero_stage: 3", ""),
    "pipeline": ("parallelism.pipeline", 2, PIPES, DENSE, "", ""),
    "expert": ("parallelism.expert", 4, MIXTURES, MIXTURE, "", ""),
    "schedule": (PIPE, "1f1b", CUT, DENSE, "pipeline: 4, pipeline_schedule: interleaved-1f1b, virtual_stages: 2", ""),
    "flushing schedule": (PIPE, "1f1b", CUT - {"megatron"}, DENSE, "pipeline: 4, pipeline_schedule: gpipe", ""),
    "virtual stages": (
        "parallelism.virtual_stages",
        4,
        CUT,
        DENSE,
        "pipeline: 4, pipeline_schedule: interleaved-1f1b, virtual_stages: 2",
        "",
    ),
    "micro-batch": ("training.micro_batch_size", 1, ALL, DENSE, "", ""),
    "recompute": (MODE, "full", ALL, DENSE, "", ""),
    "selective recompute": (MODE, "selective", MIXTURES, DENSE, "", ""),
    "fused loss": (
        "training.loss.kind",
        "fused-linear",
        frozenset({"pytorch", "huggingface", "deepspeed", "torchtune"}),
        DENSE,
        "",
        "",
    ),
    "chunked loss": ("training.loss.kind", "chunked", frozenset({"torchtitan"}), DENSE, "", ""),
    "chunked loss beside tensor": (
        "training.loss.kind",
        "vocab-parallel",
        frozenset({"pytorch"}),
        DENSE,
        "tensor: 4",
        "",
    ),
    "attention": (
        "training.attention",
        "sdpa",
        ALL - {"torchtitan", "litgpt", "torchtune", "nanotron"},
        DENSE,
        "",
        "  attention: eager",
    ),
    "implementation": (
        "training.optimizer.implementation",
        "fused",
        FSDP,
        DENSE,
        "",
        "  optimizer: {name: adamw, implementation: foreach}",
    ),
    "optimizer": ("training.optimizer.name", "adamw-8bit", ADAPTERS, DENSE, "", ""),
    "precision": ("training.precision.recipe", "bf16-pure", ALL - {"megatron"}, DENSE, "", "  precision: bf16-mixed"),
    "precision of all": (
        "training.precision.recipe",
        "bf16-mixed",
        ALL - {"torchtune"},
        DENSE,
        "",
        "  precision: fp32",
    ),
    "offloaded states": (
        "training.optimizer.offload",
        "cpu",
        frozenset({"deepspeed", "megatron"}),
        DENSE,
        "zero_stage: 1",
        "",
    ),
    "offloaded parameters": ("training.offload.parameters", "cpu", FSDP | {"deepspeed"}, DENSE, "zero_stage: 3", ""),
    "adapters": ("training.method", "lora", METHODS, DENSE, "", ""),
    "quantised adapters": ("training.method", "qlora", ADAPTERS, DENSE, "", ""),
    "shorter sequences": ("training.sequence_length", 4096, ALL, DENSE, "", ""),
    "GPU": ("hardware.gpu", "b300", ALL, "llama-3.2-1b", "", ""),
    "nodes": ("hardware.nodes", 4, SHARDED - {"litgpt", "torchtune"}, DENSE, "zero_stage: 3", ""),
}
"""Key, a value that it may take, the frameworks that have it; model, layout and settings that leave it to be changed."""


def plan_of(framework: str, name: str) -> str:
    """A plan that leaves a dimension to be changed."""
    _, _, _, model, parallelism, more = DIMENSIONS[name]
    if framework == "torchtitan" and model == MIXTURE:
        model = "qwen3-30b-a3b"
    if "precision" not in more and framework in {"litgpt", "torchtune"} and name == "quantised adapters":
        more = "  precision: bf16-pure"
    nodes = 1 if framework in {"litgpt", "torchtune"} and name != "shard group" else 2
    return PLAN.format(framework=framework, model=model, parallelism=parallelism, more=more, nodes=nodes)


@cache
def values_of(text: str) -> dict[tuple[str, str], bool]:
    """Every key and value that the single changes and the space of a plan hold, and whether one of them is legal."""
    context = context_of(text)
    pricer = Pricer(context)
    space = space_of(context)
    found: dict[tuple[str, str], bool] = {}
    for candidate in (*singles(context), *space.layouts, *space.states, *space.steps):
        missing = [pair for key, value in candidate.set.items() if not found.get(pair := (key, str(value)))]
        if missing:
            legal = pricer.legal(candidate) is not None
            found.update(dict.fromkeys(missing, legal))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", DIMENSIONS)
def test_every_framework_that_has_it_may_change_it(name: str) -> None:
    """A change of each dimension is tried wherever the framework can do it, and passes the rules there."""
    key, value, frameworks, *_ = DIMENSIONS[name]
    lacking = [each for each in sorted(frameworks) if not values_of(plan_of(each, name)).get((key, str(value)))]
    assert lacking == []


@pytest.mark.parametrize(
    "name", ["tensor", "pipeline", "expert", "flushing schedule", "fused loss", "optimizer", "quantised adapters"]
)
def test_nobody_else_is_told_to(name: str) -> None:
    """What a framework does not have is never a legal change of its plans."""
    key, value, frameworks, *_ = DIMENSIONS[name]
    for framework in sorted(ALL - frameworks):
        if name == "flushing schedule":
            continue  # the plan as written has it already
        if name == "expert" and framework in NO_MIXTURES:
            with pytest.raises(UnsupportedError, match="no model of mixtral"):
                values_of(plan_of(framework, name))
            continue
        assert not values_of(plan_of(framework, name)).get((key, str(value))), framework


def test_the_dimensions_of_serving() -> None:
    """Batch, context, cache, weights, and the layout of a served model."""
    found = values_of(SERVING)
    for key in (
        "inference.batch_size",
        "inference.context_length",
        "inference.kv_cache",
        "inference.weights",
        "parallelism.tensor",
        "parallelism.pipeline",
    ):
        assert any(legal for (each, _), legal in found.items() if each == key), key


def test_a_dense_model_has_no_experts_to_deal_out() -> None:
    """No degree of expert parallelism is tried where there is no mixture, nor more than there are experts."""
    dense = values_of(plan_of("megatron", "tensor"))
    assert not any(key == "parallelism.expert" for key, _ in dense)
    degrees = {int(value) for key, value in values_of(plan_of("megatron", "expert")) if key == "parallelism.expert"}
    assert max(degrees) == 8
