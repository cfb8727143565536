"""NCCL's buffers against readings on real machines."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import Gpu
from memcheck.job.types import InferenceJob, Layout
from memcheck.memory.overhead import (
    CONNECTION_BYTES,
    NET_SHARED_BYTES,
    RECEIVE_BYTES,
    RING_CHANNELS,
    SEND_BYTES,
    ProcessGroup,
    communicator_terms,
    group_bytes,
    groups,
)
from tests.memory.jobs import llama_8b

MIB = 2**20
A100 = Gpu("a100-80gb", 80 * 2**30, "sm_80", nvlink_gbs=600)
H100 = Gpu("h100-80gb", 80 * 2**30, "sm_90", nvlink_gbs=900)
B200 = Gpu("b200", 180 * 2**30, "sm_100", nvlink_gbs=1800)
L40S = Gpu("l40s", 44 * 2**30, "sm_89", nvlink_gbs=0)
MI300X = Gpu("mi300x", 190 * 2**30, "gfx942", nvlink_gbs=896)


def job(**layout: int) -> InferenceJob:
    """Any job with that layout."""
    return InferenceJob(llama_8b(1), Layout(**layout), 1, 1, "bf16", "bf16")


def test_buffer_sizes_are_those_of_the_allocation_log() -> None:
    """NVIDIA/nccl#1685 prints allocations of 10485760 and 2097152 bytes per channel and peer."""
    assert (RECEIVE_BYTES, SEND_BYTES) == (10485760, 2097152)


def test_rings_and_half_trees_explain_the_a100_readings() -> None:
    """NVIDIA/nccl#964: 544 MB for two ranks, 688 for more; 256 of both were the shared buffer of that time."""
    made_up_front = 32 * 16 * MIB // 2
    channels = RING_CHANNELS["sm_80"]
    assert channels * CONNECTION_BYTES + made_up_front == 544 * MIB
    assert channels * CONNECTION_BYTES * 3 // 2 + made_up_front == 688 * MIB
    assert group_bytes(ProcessGroup("pair", 2, 1, uses_collectives=True), A100) == 544 * MIB - made_up_front


def test_first_all_to_all_takes_gigabytes() -> None:
    """Eight H100: the reading is 3.28 GB; the connections of seven peers are 2.8 of it."""
    assert group_bytes(ProcessGroup("all-to-all", 8, 1, uses_collectives=False, peers=7), H100) == 7 * 32 * 12 * MIB


def test_one_gpu_has_no_communicator() -> None:
    """Nothing to talk to."""
    assert communicator_terms(job(), H100) == ()


def test_a_group_of_all_ranks_is_the_default_group() -> None:
    """FSDP over eight ranks uses one communicator, not two."""
    assert [g.kind for g in groups(job(gpus_per_node=8, data=8, shard_group=8, zero_stage=3))] == ["world"]


def test_every_dimension_has_a_group_of_its_own() -> None:
    """Tensor ranks are neighbours; data ranks of a model that fills the node are one per node."""
    found = {g.kind: g for g in groups(job(gpus_per_node=8, nodes=8, tensor=8, data=4, pipeline=2))}
    assert set(found) == {"world", "tensor", "data", "pipeline"}
    assert (found["tensor"].ranks_in_node, found["tensor"].nodes) == (8, 1)
    assert (found["data"].ranks_in_node, found["data"].nodes) == (1, 4)
    assert (found["pipeline"].ranks_in_node, found["pipeline"].peers) == (1, 1)


def test_hybrid_sharding_adds_a_group() -> None:
    """Shards of eight among sixteen ranks."""
    kinds = [g.kind for g in groups(job(gpus_per_node=8, nodes=2, data=16, shard_group=8, zero_stage=3))]
    assert kinds == ["world", "shard"]


def test_expert_parallelism_over_nodes_shares_network_buffers() -> None:
    """Two channels per peer once a group spans nodes, and one buffer for all that is sent through the network."""
    near = group_bytes(ProcessGroup("expert", 8, 1, uses_collectives=False, peers=7), H100)
    far = group_bytes(ProcessGroup("expert", 8, 2, uses_collectives=False, peers=15), H100)
    assert far == 7 * 2 * CONNECTION_BYTES + NET_SHARED_BYTES
    assert far < near / 10


@pytest.mark.parametrize(("gpu", "heads"), [(H100, 16), (B200, 24)], ids=["h100", "b200"])
def test_nvlink_sharp_has_a_buffer_for_each_head(gpu: Gpu, heads: int) -> None:
    """``nvls.cc``: channels x heads x 2 MiB, on Hopper and later only."""
    rings = RING_CHANNELS[str(gpu.arch)] * CONNECTION_BYTES * 2
    assert group_bytes(ProcessGroup("world", 8, 1, uses_collectives=True), gpu) == rings + heads * 8 * 2 * MIB


def test_cards_without_nvlink_have_few_channels() -> None:
    """Four channels over PCIe, no multicast."""
    assert group_bytes(ProcessGroup("world", 8, 1, uses_collectives=True), L40S) == 4 * 2 * CONNECTION_BYTES


def test_rccl_is_what_was_read_on_amd() -> None:
    """About 1 GiB for the first communicator, 0.65 for each further one."""
    terms = communicator_terms(job(gpus_per_node=8, nodes=2, tensor=8, data=2), MI300X)
    assert [round(size / 2**30, 2) for _, size, _ in terms] == [1.0, 0.65, 0.65]
    assert all("RCCL" in name for name, _, _ in terms)
