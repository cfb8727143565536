"""What PyTorch 2.15 changed: FSDP2's accumulated gradients and pipelining's buffers.

tests/verify holds the same against traces of whichever PyTorch is installed.
"""

from __future__ import annotations

import pytest

from memcheck.accounts.estimate import RankEstimate
from memcheck.job.types import TORCH_2_13, TORCH_2_15, Layout, Loss, TrainingJob
from memcheck.memory.estimate import estimate
from tests.memory.jobs import BF16_FSDP, BF16_PURE, BIG_GPU, FULL, job, llama_1b, llama_8b, sharded

CHUNKED = job(llama_8b(), recipe=BF16_FSDP, layout=sharded(8), loss=Loss("chunked", 8), checkpointing=FULL)
UNSYNCHRONISED = job(
    llama_8b(),
    recipe=BF16_FSDP,
    layout=sharded(8, gradient_sync="last"),
    gradient_accumulation_steps=3,
    sequence_length=256,
)
PIPELINE = job(layout=Layout(gpus_per_node=4, pipeline=4), gradient_accumulation_steps=8)
HEAD = 128256 * 4096
BOUNDARY = 4096 * 4096 * 2
"""Bytes of the hidden states between two stages."""


def ranks(case: TrainingJob, *versions: str) -> tuple[RankEstimate, ...]:
    """What the versions need."""
    return estimate(case._replace(torch=versions), BIG_GPU).ranks


def instant(case: TrainingJob, version: str, name: str, rank: int = 0) -> dict[str, int]:
    """Components of one instant."""
    return dict(next(i for i in ranks(case, version)[rank].instants if i.name == name).components_bytes)


def test_a_head_outside_of_the_model_has_gradients_in_the_reduce_dtype() -> None:
    """FSDP2's root learns of the backward behind a chunked loss: until then autograd casts to fp32."""
    old, new = (instant(CHUNKED, v, "backward")["gradients"] for v in (TORCH_2_13, TORCH_2_15))
    assert new - old == 2 * HEAD
    pure = CHUNKED._replace(recipe=BF16_PURE)
    assert instant(pure, TORCH_2_13, "backward") == instant(pure, TORCH_2_15, "backward")


def test_later_micro_batches_add_to_the_gradients_in_place() -> None:
    """Without synchronisation 2.13 has each unit's new gradients beside the sum; 2.15 has the sum alone."""
    (old,), (new,) = ranks(UNSYNCHRONISED, TORCH_2_13), ranks(UNSYNCHRONISED, TORCH_2_15)
    assert new.peak.allocated_bytes < old.peak.allocated_bytes
    whole = instant(UNSYNCHRONISED, TORCH_2_15, "backward")["gradients"]
    assert whole == pytest.approx(4 * 8_030_261_248, rel=0.01)


def test_a_stage_receives_into_new_tensors_and_drops_what_it_sent() -> None:
    """2.13 holds 8 inputs, 8 gradients and the outputs in flight all step; 2.15 those of the micro-batches in flight."""
    for rank, in_flight in ((1, 3), (2, 2)):
        old, new = instant(PIPELINE, TORCH_2_13, "backward", rank), instant(PIPELINE, TORCH_2_15, "backward", rank)
        assert old["communication_buffers"] - new["communication_buffers"] == (8 + 8 - 1) * BOUNDARY
        assert new["activations"] - old["activations"] == (in_flight - (in_flight - 1)) * BOUNDARY


def test_the_last_stage_keeps_every_input() -> None:
    """The losses that it collects refer to their graphs, whose leaves are the inputs."""
    old, new = instant(PIPELINE, TORCH_2_13, "backward", 3), instant(PIPELINE, TORCH_2_15, "backward", 3)
    assert old["communication_buffers"] - new.get("communication_buffers", 0) == 8 * BOUNDARY
    assert new["activations"] - old["activations"] == 8 * BOUNDARY


def test_gpipe_keeps_its_outputs_until_the_last_forward_is_over() -> None:
    """It waits for its sends behind the last forward, so that the backward finds none of them."""
    case = PIPELINE._replace(layout=Layout(gpus_per_node=4, pipeline=4, pipeline_schedule="gpipe"), checkpointing=FULL)
    forward = {v: instant(case, v, "forward")["activations"] for v in (TORCH_2_13, TORCH_2_15)}
    backward = {v: instant(case, v, "backward")["activations"] for v in (TORCH_2_13, TORCH_2_15)}
    assert forward[TORCH_2_15] == forward[TORCH_2_13]
    others = 8 - 2  # in the second backward, which finds gradients
    assert backward[TORCH_2_13] - backward[TORCH_2_15] == others * BOUNDARY


def test_an_unknown_version_is_the_one_that_needs_most() -> None:
    """Rank by rank: the estimate is too low for none of them."""
    for case in (CHUNKED, UNSYNCHRONISED, PIPELINE, CHUNKED._replace(architecture=llama_1b())):
        each = [ranks(case, v) for v in (TORCH_2_13, TORCH_2_15)]
        for found, *of in zip(ranks(case, TORCH_2_13, TORCH_2_15), *each, strict=True):
            assert found.peak.allocated_bytes == max(r.peak.allocated_bytes for r in of)


def test_a_gathered_buffer_outlives_the_next_copy_out_before_2_15() -> None:
    """Where the embedding and the head dwarf the layers, the forward's peak is the first layer's gather."""
    wide = job(llama_8b(), recipe=BF16_FSDP, layout=sharded(8), sequence_length=8)
    old, new = (instant(wide, v, "forward")["communication_buffers"] for v in (TORCH_2_13, TORCH_2_15))
    assert old > new
    assert instant(wide, TORCH_2_13, "backward") == instant(wide, TORCH_2_15, "backward")
