"""Communicators that a Megatron step uses, and DeepEP's buffers."""

from __future__ import annotations

import pytest

from memcheck.accounts.process_groups import HEAP_GRANULE, TOKEN_BYTES, deepep_bytes
from memcheck.catalog.names import Gpu
from memcheck.job.types import TrainingJob
from memcheck.memory.overhead import (
    CONNECTION_BYTES,
    PEER_CHANNELS,
    ProcessGroup,
    communicator_terms,
    group_bytes,
    groups,
)
from tests.frameworks.megatron.models import deepseek_v2, gpt, grid, job, llama_8b

MIB = 2**20
H100 = Gpu("h100-80gb", 79 * 2**30, "sm_90", nvlink_gbs=900)


def kinds(case: TrainingJob) -> dict[str, ProcessGroup]:
    """The groups of a job by name."""
    return {g.kind: g for g in groups(case)}


def routed(dispatcher: str, **degrees: int) -> TrainingJob:
    """A mixture of experts on eight GPUs."""
    return job(deepseek_v2(), grid(8, expert=8, **degrees), options={"moe_token_dispatcher_type": dispatcher})


def test_a_group_of_all_ranks_is_a_communicator_of_its_own() -> None:
    """create_group makes one also where the default group has the same ranks; the default group only synchronises."""
    found = kinds(job(llama_8b(), grid(8)))
    assert set(found) == {"world", "data", "gradient norm"}
    assert found["world"].connects_one_algorithm
    assert not found["data"].connects_one_algorithm
    assert group_bytes(found["world"], H100) == 24 * CONNECTION_BYTES < group_bytes(found["data"], H100) / 2


def test_numbers_are_summed_over_a_copy_of_the_model_and_over_all_ranks() -> None:
    """Success and norm over tensor times pipeline ranks; the squares over a distributed optimizer instance."""
    found = kinds(job(llama_8b(), grid(8, tensor=2)))
    assert (found["model"].ranks_in_node, found["model"].nodes) == (2, 1)
    assert (found["gradient norm"].ranks_in_node, found["gradient norm"].nodes) == (8, 1)
    two = {"num_distributed_optimizer_instances": 2}
    assert kinds(job(llama_8b(), grid(8, tensor=2), options=two))["gradient norm"].ranks_in_node == 4
    assert "gradient norm" not in kinds(job(llama_8b(), grid(8, tensor=2, zero_stage=0)))
    assert "model" not in kinds(job(llama_8b(), grid(8)))


def test_tied_embeddings_of_a_pipeline_have_a_group() -> None:
    """Their gradients are added over the first and the last stage."""
    assert "embedding" in kinds(job(gpt(), grid(8, pipeline=4)))
    assert "embedding" not in kinds(job(llama_8b(), grid(8, pipeline=4)))
    assert "embedding" not in kinds(job(gpt(), grid(8)))


def test_only_the_all_to_all_dispatcher_connects_every_pair() -> None:
    """2.6 GiB between eight ranks of a node; the default dispatcher gathers over rings."""
    gathered, exchanged = kinds(routed("allgather")), kinds(routed("alltoall"))
    assert "expert" not in gathered
    assert gathered["expert tokens"].uses_collectives
    assert exchanged["expert"].peers == 7
    assert group_bytes(exchanged["expert"], H100) == 7 * PEER_CHANNELS * CONNECTION_BYTES
    assert kinds(job(deepseek_v2(), grid(8, expert=8))) == gathered


def test_context_parallel_rings_connect_neighbours() -> None:
    """Only where keys and values are passed on."""
    ring = kinds(job(llama_8b(), grid(8, context=4)))["context"]
    gathers = kinds(job(llama_8b(), grid(8, context=4), options={"cp_comm_type": "all_gather"}))["context"]
    assert (ring.peers, gathers.peers) == (2, 0)


def test_deepep_replaces_the_expert_groups_connections() -> None:
    """The flex dispatcher's buffers are a term of their own; another backend's are not known."""
    names = [name for name, _, _ in communicator_terms(routed("flex"), H100)]
    assert "DeepEP" in names
    assert "NCCL, expert group" not in names
    other = routed("flex")._replace(
        options=(("moe_flex_dispatcher_backend", "hybridep"), ("moe_token_dispatcher_type", "flex"))
    )
    assert "DeepEP" not in [name for name, _, _ in communicator_terms(other, H100)]


@pytest.mark.parametrize(("ranks", "tokens"), [(2, 256), (8, 256)])
def test_deepep_in_a_node(ranks: int, tokens: int) -> None:
    """config.hpp: ten channels, each with 256 tokens for every rank."""
    expected = 10 * ranks * (tokens * (2 * 7168 + TOKEN_BYTES) + 5 * 4)
    assert deepep_bytes(ranks, 7168) == expected
    assert deepep_bytes(1, 7168) == 0


def test_deepep_over_nodes_uses_nvshmems_heap() -> None:
    """64 ranks: 360 MiB of NVLink buffer, and one granule of the heap for the network's."""
    near = 10 * 8 * (288 * (2 * 7168 + TOKEN_BYTES) + (2 * 8 + 3) * 4)
    assert deepep_bytes(64, 7168) == near + HEAP_GRANULE
    assert 350 * MIB < near < 370 * MIB
    assert deepep_bytes(160, 7168) > deepep_bytes(64, 7168)
    assert deepep_bytes(40, 7168) == deepep_bytes(48, 7168) - 10 * 8 * 2 * 4


def test_one_gpu_has_no_groups() -> None:
    """Nothing to talk to."""
    assert groups(job(llama_8b(), grid(1))) == ()
