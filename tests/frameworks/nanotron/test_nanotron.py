"""What nanotron holds that Megatron-core does not: autograd's gradients, DDP's buckets, all forwards' activations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.errors import UnsupportedError
from memcheck.frameworks.nanotron.profile import costed_stages
from memcheck.frameworks.registry import FRAMEWORKS, stack_of
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.plan.read import load_documents, read_plan

MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def job_of(training: dict[str, Any] | None = None, vocab: int = 1024, **parallelism: object) -> TrainingJob:
    """A small job."""
    degrees = [parallelism.get(name, 1) for name in ("data", "tensor", "pipeline")]
    plan = {
        "memcheck": 1,
        "model": {"architecture": MODEL | {"vocab_size": vocab}},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": degrees[0] * degrees[1] * degrees[2]},  # type: ignore[operator]
        "parallelism": parallelism,
        "training": {"framework": "nanotron", "micro_batch_size": 1, "sequence_length": 128} | (training or {}),
    }
    (document,) = load_documents("plan.yaml", json.dumps(plan).encode())
    read, findings = read_plan(document)
    assert read is not None, findings
    found = resolve(read, FRAMEWORKS, base_dir=".").job
    assert isinstance(found, TrainingJob)
    return found


def instants(job: TrainingJob) -> dict[str, int]:
    """Bytes of the first rank's instants."""
    ranks = stack_of(job.framework).ranks(job, job.architecture, None, False)  # type: ignore[arg-type]
    return {instant.name: instant.allocated_bytes for instant in ranks[0].instants}


def test_each_backward_makes_all_gradients_beside_their_sums() -> None:
    """With little else, backward is higher than what rests by two bytes a parameter, and what a layer takes."""
    found = instants(job_of({"activation_checkpointing": "full"}, vocab=128))
    parameters = 6 * (4 * 256 * 256 + 3 * 256 * 1024 + 512) + 256 + 2 * 128 * 256
    assert 18 * parameters <= found["init"] < 18.2 * parameters
    assert found["backward"] - found["init"] > 2 * parameters


def test_buckets_are_tensors_of_their_own_without_a_divided_optimizer() -> None:
    """Two ranks hold DDP's buckets, two bytes a parameter; ZeRO-1 runs without DDP and divides twelve of eighteen."""
    one, two = instants(job_of(data=1))["init"], instants(job_of(data=2))["init"]
    divided = instants(job_of(data=2, zero_stage=1))["init"]
    assert two - one == pytest.approx(one / 9, rel=0.01)
    assert one - divided == pytest.approx(one / 3, rel=0.01)


def test_all_forwards_first_hold_every_micro_batch() -> None:
    """Of one rank, too: each further micro-batch adds what the layers keep; one by one none does."""
    training = {"gradient_accumulation_steps": 4}
    beside = instants(job_of(training))["forward"]
    first = instants(job_of(training, pipeline_schedule="gpipe"))
    kept = instants(job_of())["forward"] - instants(job_of())["init"]
    assert first["forward"] - beside > 2 * kept


def test_a_pipeline_is_cut_by_cost() -> None:
    """A wide vocabulary takes layers from the last rank, and one that leaves a rank nothing is refused."""
    narrow, wide = (costed_stages(job_of(pipeline=2, vocab=vocab)) for vocab in (512, 8192))
    assert [len(chunk.layers) for (chunk,) in narrow] == [4, 2]
    assert [len(chunk.layers) for (chunk,) in wide] == [5, 1]
    assert [(chunk.has_embedding, chunk.has_head) for (chunk,) in wide] == [(True, False), (False, True)]
    with pytest.raises(UnsupportedError):
        costed_stages(job_of(pipeline=4, vocab=262144))


def test_interleaved_pairs_have_the_angles_of_every_position() -> None:
    """Two fp32 numbers for each pair of a head and each position that the model may have, in each of six layers."""
    plain, wide = (instants(job_of({"options": {"rope_interleaved": each}})) for each in (False, True))
    assert wide["backward"] - plain["backward"] == 6 * (4 * 64 * 512 - 512)
