"""Expert-tensor parallelism: in the spaces of those who have it, legal where it is, and the better layout for some."""

from __future__ import annotations

import pytest

from memcheck.judge import Gate, check_document
from memcheck.plan.read import load_documents
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.goals import search
from memcheck.what_if.search.space import singles, space_of
from tests.what_if.search.contexts import context_of

pytestmark = pytest.mark.slow

KEY = "parallelism.expert_tensor"
LAYOUT = ("parallelism.context", "parallelism.pipeline", "parallelism.zero_stage")
RECIPE = ("training.micro_batch_size", "training.activation_checkpointing", "training.optimizer")
PLAN = """\
memcheck: 1
model: mixtral-8x7b
hardware: {gpu: a100-40gb, gpus_per_node: 8, nodes: 4}
parallelism: {tensor: 4, expert: 8, zero_stage: 1}
training:
  framework: megatron
  micro_batch_size: 1
  sequence_length: 4096
  gradient_accumulation_steps: 16
  options: {moe_token_dispatcher_type: alltoall, overlap_grad_reduce: true}
"""


@pytest.mark.parametrize("goal", ["fit", "throughput"])
def test_it_is_the_better_layout_where_the_experts_run_out(goal: str) -> None:
    """Eight experts are on a rank each and still too large: cutting them is what fits, and passes ``check``."""
    context = context_of(PLAN)
    best = search(Pricer(context, (*LAYOUT, *RECIPE)), goal).found[0]
    assert best.changes[KEY] == 4
    (document,) = load_documents("plan.yaml", PLAN.encode())
    result = check_document(document, Gate(changes=best.changes))
    assert [f.code for f in result.findings if f.severity == "error"] == []
    assert result.estimate is not None
    assert result.estimate.utilization <= 0.9


def test_without_it_nothing_fits_there() -> None:
    """The same space with whole experts has no plan that fits."""
    pricer = Pricer(context_of(PLAN), (*LAYOUT, *RECIPE, "hardware", KEY))
    assert search(pricer, "throughput").found == ()
    assert pricer.tally.fitting == 0


def degrees(plan: str) -> tuple[set[object], set[object]]:
    """The degrees of a plan's single changes and of its space that are legal."""
    context = context_of(plan)
    pricer = Pricer(context)
    both = (singles(context), space_of(context, 0).layouts)
    alone, space = [
        {c.set[KEY] for c in candidates if KEY in c.set and pricer.legal(c) is not None} for candidates in both
    ]
    return alone, space


def test_the_degrees_are_those_of_the_tensor_ranks() -> None:
    """A space cuts experts over as many ranks as divide the layers' own; single changes go up to a node."""
    alone, space = degrees(PLAN)
    assert alone == {2, 4}
    assert space == {2, 4, 8}


@pytest.mark.parametrize(
    "changed",
    [
        {"mixtral-8x7b": "llama-3.1-8b", "expert: 8, ": ""},
        {
            "mixtral-8x7b": "qwen3-30b-a3b",
            "megatron": "torchtitan",
            "  options: {moe_token_dispatcher_type: alltoall, overlap_grad_reduce: true}\n": "",
        },
        {
            "megatron": "pytorch",
            "expert: 8, ": "",
            "moe_token_dispatcher_type: alltoall, overlap_grad_reduce: true": "",
        },
    ],
    ids=["dense", "torchtitan", "pytorch"],
)
def test_nobody_else_is_told_to(changed: dict[str, str]) -> None:
    """No dense model, and no framework that does not have it."""
    plan = PLAN
    for old, new in changed.items():
        plan = plan.replace(old, new)
    assert degrees(plan) == (set(), set())


def test_torchtitan_keeps_to_the_tensor_degree() -> None:
    """A plan of a release that has it may have it with other tensor degrees, or lose it."""
    plan = (
        PLAN.replace("mixtral-8x7b", "qwen3-30b-a3b")
        .replace("megatron", "torchtitan")
        .replace("tensor: 4", "tensor: 4, expert_tensor: 4")
        .partition("  opt")[0]
    )
    _, space = degrees(plan.replace("expert: 8", "expert: 4"))
    assert space == {1, 2}  # its four key/value heads are not cut over eight ranks
