"""Muon under Megatron: which parameters it takes, and how they are dealt to ranks."""

from __future__ import annotations

import pytest

from memcheck.accounts.state import LocalTensor
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron import buffers
from memcheck.frameworks.megatron.code import rest
from memcheck.frameworks.megatron.counted import counted
from memcheck.frameworks.megatron.muon import fullest_shard
from memcheck.frameworks.megatron.profile import PROFILE
from memcheck.job.types import TrainingJob
from tests.frameworks.megatron.models import grid, job, llama_8b

N = 1024 * 1024
MATRIX = LocalTensor("self_attention.linear_proj.weight", (1024, 1024), trained=True, matrix=True)
TABLE = MATRIX._replace(name="embedding.word_embeddings.weight")
NORM = LocalTensor("decoder.final_layernorm.weight", (1024,), trained=True)


def muon(ranks: int, **changes: object) -> TrainingJob:
    """A job with Muon over so many ranks."""
    found = job(llama_8b(), grid(ranks, zero_stage=1))
    return found._replace(optimizer=found.optimizer._replace(name="muon"), **changes)


def test_tables_and_vectors_stay_with_adam() -> None:
    """One fp32 state of a matrix, two of the table of words and of a norm."""
    states = buffers.resting(muon(1), counted([(MATRIX, TABLE, NORM)])).optimizer_states
    assert states == 4 * N + 2 * 4 * N + 2 * 4 * 1024


def test_a_matrix_belongs_to_one_rank() -> None:
    """Of five equal matrices one of four ranks has two, and every rank's part of the buffer is as large."""
    found = buffers.resting(muon(4), counted([(MATRIX,) * 5]))
    assert found.optimizer_states == 2 * 4 * N
    assert found.parameters == 4 * 2 * 2 * N
    assert found.gradients == 4 * 2 * 4 * N


def test_buckets_close_when_the_next_matrix_would_make_them_larger() -> None:
    """A bucket of two matrices holds two more that lie where padding is; the fifth begins the next."""
    assert fullest_shard(((N, 1024, 4),), 4, N) == (N, N)
    assert fullest_shard(((N, 1024, 5),), 4, N) == (2 * N, 2 * N)
    assert fullest_shard(((N, 1024, 8),), 4, 0) == (2 * N, 2 * N)


def test_a_step_gathers_the_largest_matrix() -> None:
    """Parts, the whole, its fp32 and bf16 forms, or squares; and the result for the one before."""
    assert buffers.step_temporaries(muon(2), counted([(MATRIX, TABLE)])) == (4 + 12 + 4) * N


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"layout": grid(8, zero_stage=3)}, "/parallelism/zero_stage"),
        ({"recipe": PROFILE.recipes["fp16-mixed"]}, "/training/precision"),
        ({"options": (("num_distributed_optimizer_instances", 2),)}, "/training/options/"),
    ],
)
def test_what_stops_is_refused(changes: dict[str, object], where: str) -> None:
    """Megatron-FSDP, fp16 and several instances of the distributed optimizer have no Muon."""
    with pytest.raises(UnsupportedError) as caught:
        rest(muon(2, **changes), counted([(MATRIX,)]))
    assert caught.value.pointer.startswith(where)
