"""What FSDP2 and pipelines leave behind a reduction, by the dtypes and the order of micro-batches."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.data_parallel import fsdp_group
from memcheck.frameworks.torch.resident import step_temporaries
from memcheck.job.recipe import FSDP2_BF16
from tests.verify.plans import layers, plan, subject

MATRIX = LocalTensor("w", (1024, 512), True, matrix=True)


def instants(gpus: int, parallelism: dict[str, Any], model: str = "tinyllama-1.1b", **training: Any) -> dict[str, int]:
    """The highest moments of the first rank."""
    found = subject(plan(gpus=gpus, parallelism=parallelism, model=layers(model, 4), **training))
    return {i.name: i.allocated_bytes for i in found.estimate.ranks[0].instants}


def test_sharded_gradients_have_the_dtype_of_the_shards() -> None:
    """foreach_reduce casts its output to the parameters' dtype, whatever the reduction is done in."""
    narrow, wide = (
        fsdp_group([(MATRIX, 4)], FSDP2_BF16._replace(reduce=dtype), casts_every_tensor=True, accumulation_dtype=dtype)
        for dtype in ("bf16", "fp32")
    )
    assert (narrow.reduce_scatter_output, narrow.sharded_gradients) == (2 * 1024 * 512 // 4, 4 * 1024 * 512 // 4)
    assert wide.sharded_gradients == wide.reduce_scatter_output == narrow.sharded_gradients


def test_a_narrow_reduction_saves_nothing_in_the_optimizer() -> None:
    """The plan with a bf16 reduction steps on fp32 gradients as the other does."""
    wide, narrow = (
        instants(4, {"zero_stage": 3}, precision={"recipe": "bf16-mixed", "reduce": dtype})
        for dtype in ("fp32", "bf16")
    )
    assert narrow["optimizer"] == wide["optimizer"]


def test_forwards_of_micro_batches_in_flight_see_no_gradients() -> None:
    """GPipe's forwards are over before the first backward: more micro-batches add activations, no gradients."""
    training: dict[str, Any] = {"micro_batch_size": 1, "sequence_length": 128, "precision": "fp32"}
    two = {"pipeline": 2, "pipeline_schedule": "gpipe"}
    rows = instants(2, two, gradient_accumulation_steps=2, **training)
    gradients = rows["optimizer"] - rows["init"]
    assert rows["forward"] < rows["init"] + gradients


def test_tied_tables_are_frozen_by_either_name() -> None:
    """Embedding and head are one tensor: freezing the head leaves no gradient of the embedding either."""
    head, embedding = (instants(1, {}, model="llama-3.2-1b", freeze=[part]) for part in ("head", "embed"))
    assert head["optimizer"] == embedding["optimizer"]


def test_the_loop_holds_the_denominator_of_the_tensor_before() -> None:
    """Two neighbours of one size make three tensors; a small one in front adds itself."""
    small = LocalTensor("norm", (512,), True)
    trained = [(t, t.numel) for t in (small, MATRIX, MATRIX)]
    assert step_temporaries(trained, "adamw", "for-loop", "fp32") == 3 * 4 * MATRIX.numel
    assert step_temporaries(trained[:2], "adamw", "for-loop", "fp32") == 2 * 4 * MATRIX.numel + 4 * 512


@pytest.mark.parametrize(
    ("sync", "traced"),
    [
        ("last", [921782784, 2238990848, 2067281920, 2100650496, 1229056000]),
        ("every", [921782784, 1931739648, 1760030720, 2008303104, 1229056000]),
    ],
)
def test_the_trainer_reduces_in_what_it_computes_in(sync: str, traced: list[int]) -> None:
    """Accelerate's policy has one dtype for both (utils/dataclasses.py, set_mixed_precision): no_sync keeps that.

    Traced with torch 2.13.0 under a policy that reduces in bf16.
    """
    parallelism = {"zero_stage": 3, "gradient_sync": sync}
    found = instants(
        4,
        parallelism,
        framework="huggingface",
        torch_version="2.13",
        micro_batch_size=1,
        sequence_length=512,
        gradient_accumulation_steps=2,
        precision="bf16-mixed",
        optimizer="adamw",
        activation_checkpointing="full",
        attention="sdpa",
        options={"accelerate_version": "1.13"},  # whose root has embedding and head, as the trace's had
    )
    moments = [found[name] for name in ("init", "forward", "loss", "backward", "optimizer")]
    assert moments == pytest.approx(traced, rel=0.0005)
