"""Device memory that NCCL takes for each process group, from the sizes in its source.

A connection over NVLink or PCIe holds, per channel and peer, a receive buffer with one region per protocol and a send
header, each rounded to the 2 MiB granule of cuMem; both sizes show in NVIDIA/nccl#1685's allocation log (10485760 and
2097152 bytes). Which connections exist: rings and trees for collectives, one per peer for point-to-point and
all-to-all, and one multicast buffer per head with NVLink SHARP. Connections are made on first use (NCCL 2.22 and later,
``NCCL_RUNTIME_CONNECT``). Sources: NVIDIA/nccl v2.30.7, ``src/init.cc`` (computeBuffSizes), ``src/include/device.h``,
``src/transport/p2p.cc``, ``net.cc``, ``nvls.cc``, ``src/graph/paths.cc`` (channels per peer).

Checked against NVIDIA/nccl#964 (four A100, NCCL before 2.22): 544 MB for a group of two is a ring of 24 channels (288)
and the shared network buffer that was then made up front (32 channels of 16 x 512 KiB = 256); 688 for larger groups is
one more half connection per channel for the tree (24 x 6 = 144).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.process_groups import ProcessGroup, UsedGroups
from memcheck.autograd.tensor import round_up
from memcheck.catalog.names import Gpu
from memcheck.frameworks.registry import stack_of
from memcheck.frameworks.torch.groups import MESH
from memcheck.job.types import InferenceJob, Layout, TrainingJob

KIB, MIB = 2**10, 2**20

STEPS = 8
LL_BYTES = 8 * 512 * STEPS * 16
LL128_BYTES = 120 * 640 * STEPS * 8
SIMPLE_BYTES = 4 * MIB
GRANULE = 2 * MIB
RECEIVE_BYTES = round_up(LL_BYTES + LL128_BYTES + SIMPLE_BYTES, GRANULE)
SEND_BYTES = GRANULE
CONNECTION_BYTES = RECEIVE_BYTES + SEND_BYTES
"""One direction in and one out, one channel, one peer in the same node: 12 MiB."""
NET_CONNECTION_BYTES = 2 * (round_up(LL128_BYTES + SIMPLE_BYTES, GRANULE))
"""One direction in and one out, one channel, one peer over a network with GPUDirect: LL stays in host memory
(``net.cc``, sendProxyConnect)."""

RING_CHANNELS = {"sm_70": 12, "sm_80": 24, "sm_90": 24, "sm_100": 32, "sm_103": 32}
"""Channels of a group inside one NVLink node, as NCCL prints them ("24 coll channels"): two for each ring it finds."""
RING_CHANNELS_UNKNOWN = 24
RING_CHANNELS_PCIE = 4
RING_CHANNELS_NODES = 16
"""Over several nodes of eight ("Channel 00/16" of 24 H100, NVIDIA/nccl#1453)."""
RING_CHANNELS_ALONE = 8
"""Over several nodes, few ranks in each ("8 coll channels", NVIDIA/nccl#1189)."""
PEER_CHANNELS = 32
"""Point-to-point channels per peer on an NVSwitch ("32 p2p channels per peer")."""
PEER_CHANNELS_FEW = 2
"""Per peer over PCIe, and for every peer of a group that spans nodes (``paths.cc``: the minimum over all peers)."""
NET_SHARED_BYTES = 2 * 16 * 16 * 128 * KIB
"""Point-to-point over the network shares one send and one receive buffer (``net.cc``, sharedNetBuffersInit)."""
NVLS_CHANNELS = {"sm_90": 16, "sm_100": 24, "sm_103": 24}
NVLS_CHANNELS_UNKNOWN = 16
NVLS_BYTES = 2 * STEPS * 128 * KIB
"""Per channel and head (``nvls.cc``, ncclNvlsBufferSetup)."""

KERNELS_BYTES = 228 * MIB
"""NCCL's kernels and their local memory: a process with one idle communicator on an RTX 3090 holds 484 MiB
(NVIDIA/nccl#2366), a bare context there 256 MiB (invoke-ai/InvokeAI#9413)."""

RCCL_FIRST_BYTES = 1024 * MIB
RCCL_FURTHER_BYTES = 666 * MIB
"""RCCL on MI250X: about 1 GiB, and about 0.65 GiB for each further communicator (LUMI-AI-Guide#111)."""


def exchanges(job: TrainingJob | InferenceJob) -> UsedGroups:
    """Return the rule that lists a job's process groups: its framework's, or for serving a torch device mesh's."""
    return MESH if isinstance(job, InferenceJob) else stack_of(job.framework).exchanges(job)


def groups(job: TrainingJob | InferenceJob) -> tuple[ProcessGroup, ...]:
    """List the process groups of a job that have a communicator of their own."""
    return exchanges(job).groups(job.layout)


def linked(gpu: Gpu) -> bool:
    """Whether the GPU has NVLink. A GPU that the catalog does not know is taken to have it, as that costs more."""
    return bool(gpu.nvlink_gbs) or gpu.arch is None


def channels(group: ProcessGroup, gpu: Gpu) -> int:
    """Count the NCCL channels of a group's rings, by the GPU's links and the nodes that the group spans."""
    if group.nodes > 1:
        return RING_CHANNELS_NODES if group.local > 2 else RING_CHANNELS_ALONE
    if not linked(gpu):
        return RING_CHANNELS_PCIE
    return RING_CHANNELS.get(gpu.arch or "", RING_CHANNELS_UNKNOWN)


def group_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    """Compute the device memory that NCCL takes on a rank for one process group, in bytes."""
    return _collective_bytes(group, gpu) + _peer_bytes(group, gpu)


def _collective_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    """Compute the bytes of a group's connections for collectives on a rank: rings, trees and multicast buffers.

    Each channel has one connection to the next rank of its ring. A group with one rank per node has network
    connections alone. Groups of experts and small ones make neither trees nor multicast buffers.
    """
    if not group.collectives:
        return 0
    channel_count = channels(group, gpu)
    if group.local == 1:
        return channel_count * NET_CONNECTION_BYTES
    ring = channel_count * CONNECTION_BYTES
    if group.kind == "expert" or group.small:
        return ring
    # a tree uses the ring's neighbours in the other direction; with two ranks that is the same connection
    tree = ring if group.local * group.nodes > 2 else 0
    return ring + tree + _multicast_bytes(group, gpu)


def _multicast_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    """Compute the bytes of NVLink SHARP's multicast buffers on a rank: one per channel and GPU of the group in a node.

    0: the GPU is older than Hopper or has no NVLink, or the group does not use them.
    """
    if not linked(gpu) or gpu.arch in ("sm_70", "sm_80") or group.local < 2 or group.kind == "expert" or group.small:
        return 0
    return NVLS_CHANNELS.get(gpu.arch or "", NVLS_CHANNELS_UNKNOWN) * group.local * NVLS_BYTES


def _peer_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    """Compute the bytes of a group's point-to-point connections on a rank (pipeline sends, all-to-all).

    Peers in the node have connections of their own; all peers in other nodes share one buffer.
    """
    if not group.peers:
        return 0
    peers_in_node = min(group.peers, group.local - 1)
    channels_per_peer = PEER_CHANNELS if group.nodes == 1 and linked(gpu) else PEER_CHANNELS_FEW
    network_bytes = NET_SHARED_BYTES if group.nodes > 1 else 0
    return peers_in_node * channels_per_peer * CONNECTION_BYTES + network_bytes


def communicator_terms(job: TrainingJob | InferenceJob, gpu: Gpu) -> tuple[tuple[str, int, str], ...]:
    """List name, bytes per rank and source of every communicator of a job, and of NCCL's kernels."""
    return _terms(job.layout, exchanges(job), gpu)


@lru_cache(maxsize=1024)
def _terms(layout: Layout, using: UsedGroups, gpu: Gpu) -> tuple[tuple[str, int, str], ...]:
    """List the communicators of a layout, NCCL's or on AMD GPUs RCCL's: name, bytes per rank and source of each.

    NCCL's kernels have a row of their own, as have the buffers that the framework allocates for its collectives.
    """
    process_groups = using.groups(layout)
    if not process_groups:
        return ()
    if (gpu.arch or "").startswith("gfx"):
        source = "LUMI-AI-Guide#111: about 1 GiB for the first RCCL communicator, 0.65 GiB for each further one"
        first, *further = process_groups
        rest = tuple((f"RCCL, {group.kind} group", RCCL_FURTHER_BYTES, source) for group in further)
        return ((f"RCCL, {first.kind} group", RCCL_FIRST_BYTES, source), *rest)
    kernels = ("NCCL kernels", KERNELS_BYTES, "NVIDIA/nccl#2366 less invoke-ai/InvokeAI#9413, RTX 3090")
    communicators = [
        (f"NCCL, {group.kind} group", group_bytes(group, gpu), _source(group, gpu)) for group in process_groups
    ]
    return (kernels, *communicators, *using.buffers(layout))


def _source(group: ProcessGroup, gpu: Gpu) -> str:
    """Say which connections of a group were counted, and from which files of NCCL: the source of a report's row."""
    connections = []
    if group.collectives:
        rings_alone = group.small or group.kind == "expert" or group.local * group.nodes == 2 or group.local == 1
        trees = "" if rings_alone else " and trees"
        connections.append(f"rings{trees} of {channels(group, gpu)} channels")
        if _multicast_bytes(group, gpu):
            connections.append(f"NVLink SHARP buffers of {group.local} heads")
    if group.peers:
        connections.append(f"connections to {group.peers} peers")
    return f"{', '.join(connections)} (NCCL 2.30 src/init.cc, transport/{{p2p,net,nvls}}.cc)"
