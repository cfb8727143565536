"""The engine against steps of real PyTorch, traced on fake tensors (torch 2.13.0, transformers 5.23.0, peft 0.21.2).

Every figure is the peak of live bytes of one steady training step, each block rounded up to 512 B, in MiB. The full
set of traced cases is scored by the accuracy benchmark; these are the ones that pin one mechanism each.
"""

from __future__ import annotations

import pytest

from memcheck.job.types import TORCH_2_13, Checkpointing, Layout, Lora, Loss, Optimizer, TrainingJob
from memcheck.memory.estimate import estimate
from tests.memory.jobs import (
    BF16_AUTOCAST,
    BF16_FSDP,
    BF16_PURE,
    BIG_GPU,
    FULL,
    MIB,
    job,
    llama_1b,
    llama_8b,
    sharded,
)

FUSED = Optimizer("adamw", "fused")
SINGLE_DEVICE = {
    "plain": (job(), 78198.746, "backward"),
    "fused optimizer, two sequences": (
        job(optimizer=FUSED, micro_batch_size=2, sequence_length=2048),
        78197.746,
        "backward",
    ),
    "full recompute": (job(optimizer=FUSED, checkpointing=FULL, sequence_length=8192), 64113.41, "backward"),
    "reentrant recompute": (
        job(checkpointing=Checkpointing("full", reentrant=True), micro_batch_size=2, sequence_length=8192),
        78618.042,
        "backward",
    ),
    "fused linear loss": (
        job(checkpointing=FULL, sequence_length=32768, loss=Loss("fused-linear"), optimizer=FUSED),
        68557.16,
        "backward",
    ),
    "frozen lower layers": (job(freeze=("embed", "layers:0-24"), sequence_length=2048), 32637.107, "optimizer"),
    "LoRA with fp32 adapters": (
        job(method="lora", lora=Lora(16, "all-linear", "fp32")),
        59749.791,
        "backward",
    ),
    "LoRA with bf16 adapters": (
        job(method="lora", lora=Lora(16, "all-linear", "bf16")),
        45657.791,
        "backward",
    ),
    "tied head": (job(llama_1b()), 20943.1, "backward"),
    "tied head, end of backward": (
        job(llama_1b(), recipe=BF16_AUTOCAST, optimizer=FUSED, sequence_length=512),
        20986.4,
        "backward",
    ),
    "tied head, foreach step": (job(llama_1b(), recipe=BF16_AUTOCAST, sequence_length=512), 23571.4, "optimizer"),
    "eager attention": (job(llama_1b(), attention="eager"), 70471.0, "backward"),
    "autocast": (job(llama_1b(), recipe=BF16_AUTOCAST, micro_batch_size=2, sequence_length=2048), 31667.4, "backward"),
    "gradient accumulation": (job(llama_1b(), gradient_accumulation_steps=4), 23300.4, "backward"),
    "logits dropped before backward": (job(llama_1b(), loss=Loss()), 19941.1, "backward"),
    "loss on bf16 logits": (job(llama_1b(), loss=Loss(upcast=False)), 16935.1, "backward"),
    "chunked loss": (
        job(llama_1b(), loss=Loss("chunked", chunks=8), checkpointing=FULL, sequence_length=16384),
        11919.0,
        "backward",
    ),
}

DISTRIBUTED = {
    "FSDP2": (job(recipe=BF16_FSDP, layout=sharded(8)), 46156.626, "backward"),
    "FSDP2, 256 ranks": (job(recipe=BF16_FSDP, layout=sharded(256), checkpointing=FULL), 10947.341, "backward"),
    "FSDP2 without resharding": (
        job(recipe=BF16_FSDP, layout=sharded(8, reshard_after_forward=False), checkpointing=FULL),
        34972.142,
        "backward",
    ),
    "FSDP2, unsynchronised accumulation": (
        job(
            recipe=BF16_FSDP,
            layout=sharded(8, gradient_sync="last"),
            checkpointing=FULL,
            gradient_accumulation_steps=4,
        ),
        52708.861,
        "backward",
    ),
    "FSDP2 in pure bf16": (job(recipe=BF16_PURE, layout=sharded(8), checkpointing=FULL), 16331.967, "backward"),
    "hybrid sharding": (
        job(
            recipe=BF16_FSDP,
            layout=sharded(8, gpus_per_node=8, nodes=2, data=16),
            checkpointing=FULL,
            sequence_length=8192,
        ),
        30243.767,
        "backward",
    ),
    "DDP, tied head": (
        job(
            llama_1b(),
            recipe=BF16_AUTOCAST,
            sequence_length=2048,
            layout=Layout(gpus_per_node=8, data=8, shard_group=8),
        ),
        28798.4,
        "backward",
    ),
    "TP with SP": (
        job(layout=Layout(gpus_per_node=8, tensor=8, sequence=True), sequence_length=8192),
        29725.578,
        "backward",
    ),
    "TP without SP": (job(layout=Layout(gpus_per_node=4, tensor=4)), 31053.777, "backward"),
    "TP with SP, vocabulary-parallel loss": (
        job(
            layout=Layout(gpus_per_node=8, tensor=8, sequence=True),
            sequence_length=8192,
            loss=Loss("vocab-parallel"),
        ),
        17701.899,
        "backward",
    ),
}


def check(case: TrainingJob, peak_mib: float, instant: str, rank: int = 0) -> None:
    """The rank's peak within 0.01 % and at the right instant."""
    found = estimate(case, BIG_GPU).ranks[rank].peak
    assert found.allocated_bytes / MIB == pytest.approx(peak_mib, rel=1e-4)
    assert found.name == instant


@pytest.mark.parametrize("name", SINGLE_DEVICE)
def test_a_single_device_step_peaks_where_pytorch_does(name: str) -> None:
    """One GPU: states, saved activations, loss, backward temporaries and the optimizer's."""
    check(*SINGLE_DEVICE[name])


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_a_distributed_step_peaks_where_pytorch_does(name: str) -> None:
    """FSDP2, HSDP, DDP and DTensor tensor parallelism, with their buffers."""
    check(*DISTRIBUTED[name])


@pytest.mark.parametrize(("rank", "peak_mib"), [(0, 43041.818), (1, 33011.31), (3, 31029.096)])
def test_pipeline_ranks_hold_their_micro_batches(rank: int, peak_mib: float) -> None:
    """1F1B over four stages: four, three and one micro-batches in flight, with the stage's buffers."""
    case = job(
        layout=Layout(gpus_per_node=4, pipeline=4),
        gradient_accumulation_steps=8,
        loss=Loss(keep_logits=True),
        torch=(TORCH_2_13,),
    )
    check(case, peak_mib, "backward", rank)


def test_fsdp_inside_a_pipeline_keeps_whole_gradients_and_parameters() -> None:
    """torch.distributed.pipelining reduces with the last micro-batch only, so both stay unsharded until then."""
    layout = sharded(8, pipeline=4, gpus_per_node=8, nodes=4, reshard_after_forward=False)
    case = job(llama_8b(), torch=(TORCH_2_13,), recipe=BF16_FSDP, layout=layout, checkpointing=FULL)
    check(case._replace(gradient_accumulation_steps=8), 14661.1, "backward", 2)


def test_gpipe_keeps_every_micro_batch_on_the_last_stage() -> None:
    """GPipe's last stage holds all log-probabilities and logits at once."""
    case = job(
        layout=Layout(gpus_per_node=4, pipeline=4, pipeline_schedule="gpipe"),
        gradient_accumulation_steps=8,
        checkpointing=FULL,
        sequence_length=2048,
    )
    found = estimate(case, BIG_GPU).ranks[3].peak
    assert found.allocated_bytes / MIB == pytest.approx(31212.865, rel=1e-3)
