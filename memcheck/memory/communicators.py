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
from typing import TYPE_CHECKING

from memcheck.catalog.types import Gpu
from memcheck.job.types import InferenceJob, Layout, TrainingJob
from memcheck.models.types import Architecture, Moe
from memcheck.record import Record

if TYPE_CHECKING:
    from memcheck.frameworks.megatron.groups import Use

KIB, MIB = 2**10, 2**20

STEPS = 8
LL_BYTES = 8 * 512 * STEPS * 16
LL128_BYTES = 120 * 640 * STEPS * 8
SIMPLE_BYTES = 4 * MIB
GRANULE = 2 * MIB
RECEIVE_BYTES = -(-(LL_BYTES + LL128_BYTES + SIMPLE_BYTES) // GRANULE) * GRANULE
SEND_BYTES = GRANULE
CONNECTION_BYTES = RECEIVE_BYTES + SEND_BYTES
"""One direction in and one out, one channel, one peer in the same node: 12 MiB."""
NET_CONNECTION_BYTES = 2 * (-(-(LL128_BYTES + SIMPLE_BYTES) // GRANULE) * GRANULE)
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
"""Point-to-point channels per peer behind an NVSwitch ("32 p2p channels per peer")."""
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


class ProcessGroup(Record):
    """One process group as a rank of it sees it."""

    kind: str
    """``world`` | ``data`` | ``tensor`` | ``context`` | ``pipeline`` | ``expert`` ..."""
    local: int
    """Ranks of the group in this node."""
    nodes: int
    collectives: bool
    """Uses rings, trees and NVLink SHARP."""
    peers: int = 0
    """Ranks it sends to and receives from directly."""
    small: bool = False
    """Connects one algorithm alone: sums of a few numbers, or rings that gather and scatter."""


def groups(job: TrainingJob | InferenceJob) -> tuple[ProcessGroup, ...]:
    """Process groups with a communicator of their own, ranks laid out tensor first, then context, data, pipeline.

    That is the order of Megatron (``tp-cp-ep-dp-pp``) and of a device mesh (``pp, dp, cp, tp``, last fastest).
    """
    return _groups(job.layout, _use(job))


def _use(job: TrainingJob | InferenceJob) -> Use | None:
    """What of a Megatron job decides which groups there are."""
    if isinstance(job, InferenceJob) or job.framework != "megatron":
        return None
    from memcheck.frameworks.megatron.groups import Use

    stated = job.option("use_distributed_optimizer")
    dispatcher = str(job.option("moe_token_dispatcher_type", "allgather"))
    deepep = dispatcher == "flex" and job.option("moe_flex_dispatcher_backend", "deepep") == "deepep"
    model = job.architecture
    return Use(
        dispatcher=dispatcher,
        distributed=job.layout.zero_stage >= 1 if stated is None else bool(stated),
        instances=int(str(job.option("num_distributed_optimizer_instances") or 1)),
        tied=isinstance(model, Architecture) and model.tie_word_embeddings,
        sends_ring=job.option("cp_comm_type", "p2p") == "p2p",
        token_width=model.hidden_size if deepep else 0,
        routed=isinstance(model, Architecture) and any(isinstance(block.mlp, Moe) for block, _ in model.blocks),
    )


def _groups(layout: Layout, use: Use | None) -> tuple[ProcessGroup, ...]:
    if use is not None:
        from memcheck.frameworks.megatron.groups import megatron_groups

        return megatron_groups(layout, use)
    found = [_world(layout)] if layout.world_size > 1 else []
    inner = 1
    tensor = spread("tensor", layout.tensor, inner, layout)
    inner *= layout.tensor
    context = spread("context", layout.context, inner, layout)
    inner *= layout.context
    data = spread("data", layout.data * layout.context, layout.tensor, layout)
    found.extend(g for g in (tensor, context, data) if g is not None and not _whole(g, layout))
    if 1 < layout.shard_group < layout.data * layout.context:
        shard = spread("shard", layout.shard_group, layout.tensor, layout)
        if shard is not None:
            found.append(shard)
    if layout.pipeline > 1:
        stride = layout.world_size // layout.pipeline
        local = max(1, layout.gpus_per_node // stride)
        neighbours = min(2, layout.pipeline - 1)
        found.append(
            ProcessGroup(
                kind="pipeline",
                local=min(local, layout.pipeline),
                nodes=_nodes(layout.pipeline, local),
                collectives=False,
                peers=neighbours,
            )
        )
    expert = spread("expert", layout.expert, layout.expert_tensor, layout)
    if expert is not None:
        # tokens are exchanged all to all; only their counts are gathered
        found.append(expert._replace(peers=layout.expert - 1))
        copies = layout.data * layout.context * layout.tensor // (layout.expert * layout.expert_tensor)
        replicas = spread("expert data", copies, layout.expert * layout.expert_tensor, layout)
        if replicas is not None:
            found.append(replicas)
    return tuple(found)


def _world(layout: Layout) -> ProcessGroup:
    return ProcessGroup("world", min(layout.world_size, layout.gpus_per_node), layout.nodes, collectives=True)


def _whole(group: ProcessGroup, layout: Layout) -> bool:
    """A group of all ranks is the default group."""
    return group.local * group.nodes == layout.world_size


def spread(kind: str, degree: int, stride: int, layout: Layout) -> ProcessGroup | None:
    """A group of ``degree`` ranks, ``stride`` apart; None for a single rank."""
    if degree <= 1:
        return None
    local = max(1, min(degree, layout.gpus_per_node // stride))
    return ProcessGroup(kind, local, _nodes(degree, local), collectives=True)


def _nodes(degree: int, local: int) -> int:
    return max(1, -(-degree // local))


def linked(gpu: Gpu) -> bool:
    """Behind NVLink? A GPU that the catalog does not know is taken to be, as that costs more."""
    return bool(gpu.nvlink_gbs) or gpu.arch is None


def channels(group: ProcessGroup, gpu: Gpu) -> int:
    """Channels of a group's rings."""
    if group.nodes > 1:
        return RING_CHANNELS_NODES if group.local > 2 else RING_CHANNELS_ALONE
    if not linked(gpu):
        return RING_CHANNELS_PCIE
    return RING_CHANNELS.get(gpu.arch or "", RING_CHANNELS_UNKNOWN)


def group_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    """What one group's connections take on a rank."""
    return _collective_bytes(group, gpu) + _peer_bytes(group, gpu)


def _collective_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    if not group.collectives:
        return 0
    n = channels(group, gpu)
    if group.local == 1:
        return n * NET_CONNECTION_BYTES
    ring = n * CONNECTION_BYTES
    if group.kind == "expert" or group.small:
        return ring
    # a tree uses the ring's neighbours in the other direction; with two ranks that is the same connection
    tree = ring if group.local * group.nodes > 2 else 0
    return ring + tree + _multicast_bytes(group, gpu)


def _multicast_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    if not linked(gpu) or gpu.arch in ("sm_70", "sm_80") or group.local < 2 or group.kind == "expert" or group.small:
        return 0
    return NVLS_CHANNELS.get(gpu.arch or "", NVLS_CHANNELS_UNKNOWN) * group.local * NVLS_BYTES


def _peer_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    if not group.peers:
        return 0
    near = min(group.peers, group.local - 1)
    per_peer = PEER_CHANNELS if group.nodes == 1 and linked(gpu) else PEER_CHANNELS_FEW
    far = NET_SHARED_BYTES if group.nodes > 1 else 0
    return near * per_peer * CONNECTION_BYTES + far


def communicator_terms(job: TrainingJob | InferenceJob, gpu: Gpu) -> tuple[tuple[str, int, str], ...]:
    """(name, bytes, source) of every communicator, and of NCCL itself."""
    return _terms(job.layout, _use(job), gpu)


@lru_cache(maxsize=1024)
def _terms(layout: Layout, use: Use | None, gpu: Gpu) -> tuple[tuple[str, int, str], ...]:
    found = _groups(layout, use)
    if not found:
        return ()
    if (gpu.arch or "").startswith("gfx"):
        source = "LUMI-AI-Guide#111: about 1 GiB for the first RCCL communicator, 0.65 GiB for each further one"
        first, *further = found
        rest = tuple((f"RCCL, {g.kind} group", RCCL_FURTHER_BYTES, source) for g in further)
        return ((f"RCCL, {first.kind} group", RCCL_FIRST_BYTES, source), *rest)
    kernels = ("NCCL kernels", KERNELS_BYTES, "NVIDIA/nccl#2366 less invoke-ai/InvokeAI#9413, RTX 3090")
    rows = (kernels, *((f"NCCL, {g.kind} group", group_bytes(g, gpu), _source(g, gpu)) for g in found))
    return (*rows, *_deepep(layout, use))


def _deepep(layout: Layout, use: Use | None) -> tuple[tuple[str, int, str], ...]:
    """DeepEP's buffers, in place of NCCL's connections between expert ranks."""
    if use is None or not use.token_width or layout.expert * layout.expert_tensor == 1:
        return ()
    from memcheck.frameworks.megatron.groups import deepep_bytes

    ranks = layout.expert * layout.expert_tensor
    source = f"buffers for {ranks} ranks (deepseek-ai/DeepEP csrc/config.hpp, deep_ep/buffer.py)"
    return (("DeepEP", deepep_bytes(ranks, use.token_width), source),)


def _source(group: ProcessGroup, gpu: Gpu) -> str:
    parts = []
    if group.collectives:
        one = group.small or group.kind == "expert" or group.local * group.nodes == 2 or group.local == 1
        trees = "" if one else " and trees"
        parts.append(f"rings{trees} of {channels(group, gpu)} channels")
        if _multicast_bytes(group, gpu):
            parts.append(f"NVLink SHARP buffers of {group.local} heads")
    if group.peers:
        parts.append(f"connections to {group.peers} peers")
    return f"{', '.join(parts)} (NCCL 2.30 src/init.cc, transport/{{p2p,net,nvls}}.cc)"
