"""Live blocks of a snapshot next to the ledger of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.accounts.estimate import TensorGroup
from memcheck.why.live import (
    ACTIVATIONS,
    BUFFERS,
    GRADIENTS,
    LOGITS,
    OTHER,
    PARAMETERS,
    STATES,
    component_of,
    map_blocks,
)
from memcheck.why.snapshot_file import Frame
from memcheck.why.snapshots import LiveBlocks
from tests.verify.plans import plan, subject

TORCH = "/lib/python3.11/site-packages/torch/"
MODELING = "/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py"
STACKS = {
    STATES: [("_init_group", TORCH + "optim/adamw.py")],
    PARAMETERS: [("convert", TORCH + "nn/modules/module.py"), ("_apply", TORCH + "nn/modules/module.py")],
    GRADIENTS: [("_engine_run_backward", TORCH + "autograd/graph.py")],
    ACTIVATIONS: [("forward", TORCH + "nn/modules/linear.py"), ("forward", MODELING)],
    LOGITS: [("cross_entropy", TORCH + "nn/functional.py"), ("ForCausalLMLoss", "transformers/loss/loss_utils.py")],
    BUFFERS: [("allocate", TORCH + "distributed/fsdp/_fully_shard/_fsdp_collectives.py")],
    OTHER: [("on_step_end", "callbacks.py"), ("train", "train.py")],
}


def stack(component: str) -> tuple[Frame, ...]:
    """A stack that allocates for a component, with wrappers around it."""
    inner = Frame("c10::cuda::CUDACachingAllocator::Native::malloc", "??", 0)
    outer = Frame("_call_impl", TORCH + "nn/modules/module.py", 1784)
    return (inner, *(Frame(name, file, 1) for name, file in STACKS[component]), outer)


@pytest.mark.parametrize("component", STACKS)
def test_a_stack_names_its_component(component: str) -> None:
    """C++ frames and wrappers say nothing; threads of backward have no frames."""
    assert component_of(stack(component)) == component
    assert component_of(()) == GRADIENTS


LEDGER = (
    TensorGroup("mlp.up_proj.weight", "[4096, 1024] fp32", 8, 8 * 2**24, PARAMETERS),
    TensorGroup("adamw states of mlp.up_proj.weight", "[4096, 1024] fp32", 8, 8 * 2**25, STATES),
    TensorGroup("up_proj output", "[8192, 4096] bf16", 8, 8 * 2**26, ACTIVATIONS),
    TensorGroup("log-softmax", "[8192, 32000] fp32", 1, 8192 * 32000 * 4, LOGITS),
)


def blocks(component: str, count: int, each: int, steps: int = 1) -> LiveBlocks:
    """Equal live blocks."""
    return LiveBlocks(stack(component), count, count * each, each, steps)


def test_what_the_plan_does_not_know_comes_first() -> None:
    """A leak has no counterpart; a tensor that is there more often than planned comes next; the rest is as planned."""
    live = (
        blocks(PARAMETERS, 8, 2**24),
        blocks(STATES, 8, 2**25),
        blocks(ACTIVATIONS, 12, 2**26),
        blocks(LOGITS, 1, 8192 * 32000 * 4),
        blocks(OTHER, 40, 3 * 2**22, steps=40),
    )
    found = map_blocks(live, LEDGER)
    assert [(row.component, row.tensor, row.surplus_bytes) for row in found.rows[:2]] == [
        (OTHER, "", 40 * 3 * 2**22),
        (ACTIVATIONS, "up_proj output", 4 * 2**26),
    ]
    assert found.rows[0].where == "on_step_end (callbacks.py:1)"
    assert found.unknown_bytes == 40 * 3 * 2**22
    assert all(row.tensor and not row.surplus_bytes for row in found.rows[2:])
    assert found.predicted_bytes[ACTIVATIONS] == 8 * 2**26
    assert found.observed_bytes[ACTIVATIONS] == 12 * 2**26


@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("llama-3.2-1b", {"sequence_length": 2048}),
        ("qwen2.5-7b", {"sequence_length": 1024, "micro_batch_size": 2}),
        ("gpt2", {"sequence_length": 1024, "optimizer": "sgd"}),
    ],
)
def test_the_ledger_of_a_plan_maps_to_itself(name: str, training: dict[str, Any]) -> None:
    """Blocks of every tensor that an estimate lists find their tensor, whatever the model."""
    found = subject(plan(model=name, **training))
    ledger = found.estimate.ranks[0].ledger
    live = [blocks(g.component, g.copies, g.bytes // g.copies) for g in ledger if g.component in STACKS and g.copies]
    mapped = map_blocks(live, ledger)
    assert len(live) > 12
    assert mapped.unknown_bytes == 0
    assert not any(row.surplus_bytes for row in mapped.rows)
