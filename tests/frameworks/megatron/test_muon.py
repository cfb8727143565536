"""Muon under Megatron: which parameters it takes, and how they are assigned to ranks."""

from __future__ import annotations

import random

import pytest

from memcheck.accounts.state import LocalTensor
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron import buffers
from memcheck.frameworks.megatron.buffers import assign_bucket, counted, fullest_shard
from memcheck.frameworks.megatron.code import resident
from memcheck.frameworks.megatron.profile import FRAMEWORK
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
    states = buffers.state_bytes(muon(1), counted([(MATRIX, TABLE, NORM)])).optimizer_states
    assert states == 4 * N + 2 * 4 * N + 2 * 4 * 1024


def test_a_matrix_belongs_to_one_rank() -> None:
    """Of five equal matrices one of four ranks has two, and every rank's part of the buffer is as large."""
    found = buffers.state_bytes(muon(4), counted([(MATRIX,) * 5]))
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
        ({"recipe": FRAMEWORK.precisions.recipes["fp16-mixed"]}, "/training/precision"),
        ({"options": (("num_distributed_optimizer_instances", 2),)}, "/training/options/"),
    ],
)
def test_what_stops_is_refused(changes: dict[str, object], where: str) -> None:
    """Megatron-FSDP, fp16 and several instances of the distributed optimizer have no Muon."""
    with pytest.raises(UnsupportedError) as caught:
        resident(muon(2, **changes), counted([(MATRIX,)]))
    assert caught.value.pointer.startswith(where)


def test_dealing_follows_the_rule_rank_by_rank() -> None:
    """Whoever has least work and room, looked up among all ranks for every matrix, is given the same."""
    draw = random.Random(7)  # noqa: S311 - the same matrices every time
    for _ in range(200):
        matrices = [
            (r * draw.choice((8, 100, 256, 1024)), r)
            for r in draw.choices((8, 64, 100, 256, 1000), k=draw.randint(1, 40))
        ]
        ranks = draw.randint(1, 24)
        cap = sum(n for n, _ in matrices) / ranks * draw.choice((0.9, 1.0, 1.3))
        loads, cursors, mine = [float(draw.randint(0, 3)) for _ in range(ranks)], [0] * ranks, [0] * ranks
        found = assign_bucket(matrices, list(loads), cap)
        for n, rows in sorted(matrices, key=lambda each: each[0] * min(each[1], each[0] // each[1]), reverse=True):
            room = [rank for rank in range(ranks) if -(-cursors[rank] // 64) * 64 + n <= cap]
            rank = min(room, key=loads.__getitem__) if room else min(range(ranks), key=cursors.__getitem__)
            cursors[rank] = -(-cursors[rank] // 64) * 64 + n
            loads[rank] += n * min(rows, n // rows)
            mine[rank] += n
        assert found == ({rank: n for rank, n in enumerate(mine) if n}, max(cursors))
