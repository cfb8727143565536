"""Pipelines of FSDP2: when a rank's gradients are reduced, which chunks are gathered, and the steps that say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drawn import predicted
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.interleaved import ORDERS, chunk_parts, distinct_passes, enough_micro_batches
from memcheck.frameworks.torch.pipelining import stage_parts
from memcheck.job.types import Layout

TRACED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("traced_pipelines.json").read_text(encoding="utf-8"))
"""Steps of torch 2.13.0's ``torch.distributed.pipelining`` around small stages under ``fully_shard``: the highest bytes
of each instant of every pipeline rank, by ``memcheck verify``. Chunks that are resharded behind every forward
(``reshard_after_forward: true``) are 3.5 to 5 % too high at the peak and not among them."""
ABOVE = {"forward": 0.16, "loss": 0.025}
"""How far these may be predicted too high in chunks: three of them are taken to be gathered before they are."""


@pytest.mark.parametrize("row", TRACED, ids=[row["id"] for row in TRACED])
def test_every_rank_of_a_traced_step(row: dict[str, Any]) -> None:
    """Gradients wait in the dtype of the reduction until a stage's last backward is over: they are most of the peak."""
    found = predicted(row["plan"])
    chunked = row["plan"]["parallelism"].get("virtual_stages", 1) > 1
    for rank, instants in row["ranks"].items():
        assert -0.005 <= max(found[rank].values()) / max(instants.values()) - 1 <= 0.01, rank
        for name, traced in instants.items():
            assert -0.005 <= found[rank][name] / traced - 1 <= (ABOVE.get(name, 0.01) if chunked else 0.012), (
                rank,
                name,
            )


@pytest.mark.parametrize(
    ("layers", "ways", "fewer", "held"),
    [
        (32, 8, (1, 1), [4, 5, 4, 4, 4, 4, 4, 3]),
        (32, 4, (1, 1), [8, 9, 8, 7]),
        (7, 3, (0, 0), [3, 2, 2]),
        (6, 2, (2, 0), [2, 4]),
        (5, 1, (1, 1), [5]),
    ],
)
def test_ends_count_as_layers(layers: int, ways: int, fewer: tuple[int, int], held: list[int]) -> None:
    """What torchtitan's ``_generate_llm_fqn_per_model_part`` deals out."""
    assert [part.end_layer - part.first_layer for part in stage_parts(layers, ways, fewer)] == held


def test_ends_without_a_layer_are_refused() -> None:
    """torchtitan raises an error: "input_weight exceeds minimum layers per stage"."""
    with pytest.raises(UnsupportedError, match="fewer than 1 for each of 8 stages"):
        stage_parts(4, 8, (1, 1))


def test_torchtitan_gathers_a_stage_once() -> None:
    """Its default keeps parameters gathered in a pipeline, which other loops have to ask for."""
    plan: dict[str, Any] = {
        "memcheck": 1,
        "name": "default",
        "model": {"name": "llama-3.1-8b", "overrides": {"num_hidden_layers": 4}},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 4},
        "parallelism": {"zero_stage": 3, "pipeline": 2},
        "training": {
            "framework": "torchtitan",
            "micro_batch_size": 1,
            "sequence_length": 512,
            "gradient_accumulation_steps": 4,
        },
    }
    again = {**plan, "parallelism": {**plan["parallelism"], "reshard_after_forward": True}}
    kept = {**plan, "parallelism": {**plan["parallelism"], "reshard_after_forward": False}}
    assert predicted(plan) == predicted(kept)
    assert predicted(plan)["0"]["forward"] > predicted(again)["0"]["forward"]


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize(("schedule", "micro_batches"), [("zero-bubble", 6), ("zero-bubble", 12), ("dualpipe", 7)])
def test_split_schedules_run_everything_once(schedule: str, micro_batches: int, rank: int) -> None:
    """Every micro-batch passes every chunk forward, and backward as a whole or in two parts, the weights' behind."""
    actions = ORDERS[schedule](3, 2, rank, micro_batches)
    for chunk in (0, 1):
        mine = [kind for kind, index in actions if index == chunk]
        assert mine.count("F") == micro_batches == mine.count("B") + mine.count("I")
        assert mine.count("I") == mine.count("W")
        for end in range(len(mine)):
            seen = mine[:end]
            assert seen.count("W") <= seen.count("I")
            assert seen.count("B") + seen.count("I") <= seen.count("F")
    assert ("I", 0) not in actions or rank


def test_dualpipe_holds_both_ends_of_the_model() -> None:
    """Rank 0 embeds, and has the head."""
    layout = Layout(pipeline=2, virtual_stages=2, pipeline_schedule="dualpipe")
    held = [chunk_parts(8, layout, rank) for rank in (0, 1)]
    assert [(each.first_layer, each.end_layer, each.has_embedding, each.has_head) for each in held[0]] == [
        (0, 2, True, False),
        (6, 8, False, True),
    ]
    assert [(each.first_layer, each.end_layer) for each in held[1]] == [(2, 4), (4, 6)]


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("schedule", ["zero-bubble", "dualpipe"])
def test_recompute_under_a_split_backward_is_refused(schedule: str, mode: str) -> None:
    """Torch stops at it, or recomputes a layer for each of its weights."""
    plan = {
        "memcheck": 1,
        "name": "split",
        "model": {"name": "llama-3.1-8b", "overrides": {"num_hidden_layers": 8}},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 4},
        "parallelism": {"zero_stage": 3, "pipeline": 2, "pipeline_schedule": schedule},
        "training": {
            "framework": "torchtitan",
            "micro_batch_size": 1,
            "sequence_length": 512,
            "gradient_accumulation_steps": 8,
            "activation_checkpointing": mode,
        },
    }
    with pytest.raises(TypeError, match="splits the backward"):
        predicted(plan)


def test_one_round_finishes_a_chunk_before_the_next() -> None:
    """Two micro-batches on two ranks: no more than one chunk's gradients wait."""
    found = distinct_passes(Layout(pipeline=2, virtual_stages=4, pipeline_schedule="interleaved-1f1b"), 0, 2)
    assert [each.chunk for each in found] == [3, 3, 2, 2, 1, 1, 0, 0]
    assert [(each.is_first, each.is_last) for each in found[:2]] == [(True, False), (False, True)]
    assert found[0].others_in_flight == (2, 2, 2, 1)
    assert found[-1].also_gathered == ()


def test_several_rounds_leave_gradients_in_every_chunk() -> None:
    """Every chunk has been passed backward before the first is reduced, with two more chunks gathered beside each."""
    found = distinct_passes(Layout(pipeline=2, virtual_stages=2, pipeline_schedule="interleaved-1f1b"), 1, 8)
    reduced = [number for number, each in enumerate(found) if each.is_last]
    assert {each.chunk for each in found[: reduced[0]]} == {0, 1}
    assert [each.chunk for each in found if each.is_last] == [1, 0]
    assert enough_micro_batches(Layout(pipeline=2, virtual_stages=2), 64) == 6
