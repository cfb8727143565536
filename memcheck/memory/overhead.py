"""From allocated bytes to device bytes.

``allocated`` holds the tensors that training code makes; that includes TransformerEngine's workspaces, which Python
code makes (``frameworks/megatron/workspaces.py``). Here is added what no tensor of the step shows: what the caching
allocator holds beyond live blocks, the driver's context, libraries' own workspaces, and communicators.

cuBLAS's workspace is a special case: ATen takes it from the caching allocator, one for each handle (the forward and the
autograd thread have one each), so ``torch.cuda.max_memory_allocated()`` of a real run reads that much more than
``allocated``. It is a library's workspace, constant for a GPU, and counted with those; Megatron's ledger has its own.

NCCL's communicators: a connection over NVLink or PCIe holds, per channel and peer, a receive buffer with one region per
protocol and a send header, each rounded to the 2 MiB granule of cuMem; both sizes show in NVIDIA/nccl#1685's allocation
log (10485760 and 2097152 bytes). Which connections exist: rings and trees for collectives, one per peer for
point-to-point and all-to-all, and one multicast buffer per head with NVLink SHARP. Connections are made on first use
(NCCL 2.22 and later, ``NCCL_RUNTIME_CONNECT``). Sources: NVIDIA/nccl v2.30.7, ``src/init.cc`` (computeBuffSizes),
``src/include/device.h``, ``src/transport/p2p.cc``, ``net.cc``, ``nvls.cc``, ``src/graph/paths.cc`` (channels per peer).

Checked against NVIDIA/nccl#964 (four A100, NCCL before 2.22): 544 MB for a group of two is a ring of 24 channels (288)
and the shared network buffer that was then made up front (32 channels of 16 x 512 KiB = 256); 688 for larger groups is
one more half connection per channel for the tree (24 x 6 = 144).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.estimate import Pools
from memcheck.accounts.process_groups import OutsideTerm, ProcessGroup, UsedGroups
from memcheck.autograd.tensor import round_up
from memcheck.catalog.names import Gpu
from memcheck.frameworks.registry import stack_of
from memcheck.frameworks.torch.pipelining import MESH
from memcheck.job.types import InferenceJob, Layout, Overhead, TrainingJob
from memcheck.memory.allocator import Residuals, Shares, Spread, allocator_bytes, shares
from memcheck.models.types import Rough
from memcheck.record import Record

KIB, MIB = 2**10, 2**20

STEPS = 8
"""Slots of each receive buffer (``device.h``, NCCL_STEPS)."""
LL_BYTES = 8 * 512 * STEPS * 16
"""Receive buffer of the LL protocol: 8 lines for each of 512 threads in each slot, 16 bytes a line (``device.h``)."""
LL128_BYTES = 120 * 640 * STEPS * 8
"""Receive buffer of LL128: 120 elements for each of 640 threads in each slot, 8 bytes an element (``device.h``)."""
SIMPLE_BYTES = 4 * MIB
"""Receive buffer of the Simple protocol (``init.cc``, DEFAULT_BUFFSIZE)."""
GRANULE = 2 * MIB
"""What cuMem rounds an allocation up to."""
RECEIVE_BYTES = round_up(LL_BYTES + LL128_BYTES + SIMPLE_BYTES, GRANULE)
SEND_BYTES = GRANULE
"""A send header, rounded up."""
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
    return MESH if isinstance(job, InferenceJob) else stack_of(job.framework).process_groups(job)


def groups(job: TrainingJob | InferenceJob) -> tuple[ProcessGroup, ...]:
    """List the process groups of a job that have a communicator of their own."""
    return exchanges(job).groups(job.layout)


def linked(gpu: Gpu) -> bool:
    """Whether the GPU has NVLink. A GPU that the catalog does not know is taken to have it, as that costs more."""
    return bool(gpu.nvlink_gbs) or gpu.arch is None


def channels(group: ProcessGroup, gpu: Gpu) -> int:
    """Count the NCCL channels of a group's rings, by the GPU's links and the nodes that the group spans."""
    if group.nodes > 1:
        return RING_CHANNELS_NODES if group.ranks_in_node > 2 else RING_CHANNELS_ALONE
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
    if not group.uses_collectives:
        return 0
    channel_count = channels(group, gpu)
    if group.ranks_in_node == 1:
        return channel_count * NET_CONNECTION_BYTES
    ring = channel_count * CONNECTION_BYTES
    if group.kind == "expert" or group.connects_one_algorithm:
        return ring
    # a tree uses the ring's neighbours in the other direction; with two ranks that is the same connection
    tree = ring if group.ranks_in_node * group.nodes > 2 else 0
    return ring + tree + _multicast_bytes(group, gpu)


def _multicast_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    """Compute the bytes of NVLink SHARP's multicast buffers on a rank: one per channel and GPU of the group in a node.

    0: the GPU is older than Hopper or has no NVLink, or the group does not use them.
    """
    if (
        not linked(gpu)
        or gpu.arch in ("sm_70", "sm_80")
        or group.ranks_in_node < 2
        or group.kind == "expert"
        or group.connects_one_algorithm
    ):
        return 0
    return NVLS_CHANNELS.get(gpu.arch or "", NVLS_CHANNELS_UNKNOWN) * group.ranks_in_node * NVLS_BYTES


def _peer_bytes(group: ProcessGroup, gpu: Gpu) -> int:
    """Compute the bytes of a group's point-to-point connections on a rank (pipeline sends, all-to-all).

    Peers in the node have connections of their own; all peers in other nodes share one buffer.
    """
    if not group.peers:
        return 0
    peers_in_node = min(group.peers, group.ranks_in_node - 1)
    channels_per_peer = PEER_CHANNELS if group.nodes == 1 and linked(gpu) else PEER_CHANNELS_FEW
    network_bytes = NET_SHARED_BYTES if group.nodes > 1 else 0
    return peers_in_node * channels_per_peer * CONNECTION_BYTES + network_bytes


def communicator_terms(job: TrainingJob | InferenceJob, gpu: Gpu) -> tuple[OutsideTerm, ...]:
    """List every communicator of a job, and NCCL's kernels, with bytes per rank."""
    return _terms(job.layout, exchanges(job), gpu)


@lru_cache(maxsize=1024)
def _terms(layout: Layout, using: UsedGroups, gpu: Gpu) -> tuple[OutsideTerm, ...]:
    """List the communicators of a layout, NCCL's or on AMD GPUs RCCL's, with bytes per rank.

    NCCL's kernels have a row of their own, as have the buffers that the framework allocates for its collectives.
    """
    process_groups = using.groups(layout)
    if not process_groups:
        return ()
    if (gpu.arch or "").startswith("gfx"):
        source = "LUMI-AI-Guide#111: about 1 GiB for the first RCCL communicator, 0.65 GiB for each further one"
        first, *further = process_groups
        others = tuple(OutsideTerm(f"RCCL, {group.kind} group", RCCL_FURTHER_BYTES, source) for group in further)
        return (OutsideTerm(f"RCCL, {first.kind} group", RCCL_FIRST_BYTES, source), *others)
    kernels = OutsideTerm("NCCL kernels", KERNELS_BYTES, "NVIDIA/nccl#2366 less invoke-ai/InvokeAI#9413, RTX 3090")
    communicators = [
        OutsideTerm(f"NCCL, {group.kind} group", group_bytes(group, gpu), _source(group, gpu))
        for group in process_groups
    ]
    return (kernels, *communicators, *using.buffers(layout))


def _source(group: ProcessGroup, gpu: Gpu) -> str:
    """Say which connections of a group were counted, and from which files of NCCL: the source of a report's row."""
    connections = []
    if group.uses_collectives:
        rings_alone = (
            group.connects_one_algorithm
            or group.kind == "expert"
            or group.ranks_in_node * group.nodes == 2
            or group.ranks_in_node == 1
        )
        trees = "" if rings_alone else " and trees"
        connections.append(f"rings{trees} of {channels(group, gpu)} channels")
        if _multicast_bytes(group, gpu):
            connections.append(f"NVLink SHARP buffers of {group.ranks_in_node} heads")
    if group.peers:
        connections.append(f"connections to {group.peers} peers")
    return f"{', '.join(connections)} (NCCL 2.30 src/init.cc, transport/{{p2p,net,nvls}}.cc)"


EXACT = Spread(n=0, low=1.0, median=1.0, high=1.0)
"""A measured spread of nothing: bytes are taken as they are."""


class OutsideBytes(Record):
    """Bytes that one rank takes of its GPU outside PyTorch's caching allocator, by owner."""

    context: int
    """The driver's context with kernels, or what a plan states in place of all overhead."""
    libraries: int
    """Workspaces, constants of their source, and CUDA graphs."""
    communicators: int
    """NCCL's buffers and kernels."""
    read: bool = False
    """The context was read on a GPU of this very kind, not on the largest of its architecture."""
    in_host: int = 0
    """What of the communicators may lie in host memory."""

    @property
    def total(self) -> int:
        """Context, libraries and communicators together, in bytes."""
        return self.context + self.libraries + self.communicators

    def ends(self, tables: Residuals) -> tuple[int, int]:
        """Return the lowest and the highest total in bytes, by measured spreads of context and communicators.

        Libraries' bytes are constants of their source. The lower end leaves out communicators that may be in host
        memory.
        """
        context = tables.outside.get("context, read" if self.read else "context", EXACT)
        communicators = tables.outside.get("communicators", EXACT)
        low = high = self.libraries
        for size, measured in ((self.context, context), (self.communicators, communicators)):
            low += int(size * min(1.0, measured.low))
            high += int(size * max(1.0, measured.high))
        low -= int(self.in_host * min(1.0, communicators.low))
        return low, high


NOTHING_OUTSIDE = OutsideBytes(0, 0, 0)


CONTEXT = {
    "sm_70": (300, "pytorch/pytorch#107667: about 300 MB since kernels are loaded lazily (CUDA 11.7)"),
    "sm_75": (141, "fitcheck's archive: 79 runs on a T4, torch 2.10 to 2.14, read after the step"),
    "sm_80": (501, "AgileRL/AgileRL#635: A100, NVML around a one-element allocation, torch 2.11, CUDA 13"),
    "sm_86": (256, "invoke-ai/InvokeAI#9413: RTX 3090, torch 2.7"),
    "sm_89": (426, "unslothai/unsloth-zoo#1053: RTX 6000 Ada, torch 2.10, CUDA 13; 226 on an L4 (AgileRL/AgileRL#635)"),
    "sm_90": (532, "mlc-ai/pith-train tools/memory_estimator: 0.52 GiB after CUDA starts on an H100"),
}
"""MiB of a bare context on the largest part of that architecture whose reading is public: it grows with the number of
multiprocessors, and an estimate should not be too low for a part of the same architecture."""
CONTEXT_UNKNOWN = (616, "LMCache/LMCache#4019: the largest public reading of a bare context")

KERNELS_MIB = 36
"""Kernels that a first step loads: a T4's context grows from 105 to 141 MiB (fitcheck's archive)."""

CUBLAS_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB
CUBLAS_HOPPER_BYTES = 8 * 4096 * KIB
"""ATen's default ``CUBLAS_WORKSPACE_CONFIG`` (``aten/src/ATen/cuda/CublasHandlePool.cpp``): ``:4096:2:16:8``, on Hopper
``:4096:8``; cuBLASLt shares it (``TORCH_CUBLASLT_UNIFIED_WORKSPACE``, on by default since torch 2.7)."""
LARGE_WORKSPACE = (None, "sm_90", "sm_100", "sm_103", "sm_120")
"""Hopper, and Blackwell since pytorch/pytorch#175344; an unknown GPU gets the larger one."""
HIPBLASLT_BYTES = 76 * MIB
"""ATen's default for hipBLASLt, same file."""

GRAPHS_BYTES = 3 * KIB * MIB
GRAPHS_PIPELINE_BYTES = 10 * KIB * MIB
"""Megatron-Bridge's performance guide: CUDA graphs take "a few GB", with pipelines possibly over 10 GB. No formula is
known: their private pools depend on which layers are captured."""


NO_POOLS = Pools()
"""Pools of a step that is not recorded: one on a single stream."""


class Slack(Record):
    """The bytes between the live tensors of a rank and its device memory."""

    fragmentation: int
    """Bytes that the caching allocator holds beyond live tensors, its cache included."""
    outside: OutsideBytes
    """Bytes outside the caching allocator, by owner."""
    cache: int = 0
    """The part of ``fragmentation`` that the allocator returns before an allocation fails."""

    @property
    def context_and_nccl(self) -> int:
        """Bytes outside the allocator."""
        return self.outside.total


class Surroundings(Record):
    """The overhead of a job that its batch does not change: bytes outside the allocator, and the allocator's ratios."""

    outside: OutsideBytes
    shares: Shares
    """Ratios of what the caching allocator holds to live bytes."""


def surroundings(job: TrainingJob | InferenceJob, gpu: Gpu) -> Surroundings:
    """Return the overhead that the batch of a job does not change: bytes outside the allocator, and its shares."""
    terms_by_kind = context_terms(gpu), library_terms(job, gpu), communicator_terms(job, gpu)
    context, libraries, communicators = (sum(term.bytes for term in terms) for terms in terms_by_kind)
    # without peer access NCCL's buffers may be in host memory; its kernels are on the GPU anyway
    in_host = 0 if gpu.peer_access else max(0, communicators - KERNELS_BYTES)
    outside = OutsideBytes(
        context=context,
        libraries=libraries,
        communicators=communicators,
        read=gpu.context_read,
        in_host=in_host,
    )
    return Surroundings(outside, shares(job))


def slack(
    job: TrainingJob | InferenceJob,
    gpu: Gpu,
    overhead: Overhead,
    allocated: int,
    known: Surroundings | None = None,
    pools: Pools = NO_POOLS,
) -> Slack:
    """Return the bytes that a GPU holds besides live tensors: fragmentation, cache, and all outside the allocator.

    ``allocated``: bytes of live tensors at the peak. ``known``: the result of :func:`surroundings`, if the caller has
    it. ``pools``: the allocator's pools in the rank's step; without them the step counts as one on a single stream.
    """
    if overhead.kind == "flat":
        return Slack(0, NOTHING_OUTSIDE._replace(context=int(allocated * overhead.fraction)))
    outside, allocator_shares = known or surroundings(job, gpu)
    held = allocator_bytes(allocator_shares, allocated, room(gpu, outside.total, allocated), pools)
    return Slack(fragmentation=held.stuck + held.cache, outside=outside, cache=held.cache)


def room(gpu: Gpu, outside: int, allocated: int) -> int:
    """Return the bytes of the GPU that are left for what the allocator holds beyond live tensors; may be negative."""
    return gpu.memory_bytes - outside - allocated


def context_terms(gpu: Gpu) -> tuple[OutsideTerm, ...]:
    """List the driver's context and the kernels that a step loads into it."""
    mib, source = CONTEXT.get(gpu.arch or "", CONTEXT_UNKNOWN)
    context = OutsideTerm("driver context", mib * MIB, source)
    if gpu.arch == "sm_75":  # the T4's context was read after a step: kernels are included
        return (context,)
    source = "fitcheck's archive: 105 to 141 MiB on a T4"
    return context, OutsideTerm("kernels loaded by a step", KERNELS_MIB * MIB, source)


def library_terms(job: TrainingJob | InferenceJob, gpu: Gpu) -> tuple[OutsideTerm, ...]:
    """List the workspaces of libraries and the pools of CUDA graphs.

    A training process has a BLAS handle in the forward thread and one in the autograd thread.
    """
    if isinstance(job, InferenceJob):
        return (_blas(gpu, threads=1),)
    terms = []
    if not job.framework.transformer_engine:  # TransformerEngine's workspaces are tensors of the step
        terms.append(_blas(gpu, threads=1 if isinstance(job.architecture, Rough) else 2))
    if str(job.option("cuda_graph_impl", "none")).lower() != "none":
        size = GRAPHS_PIPELINE_BYTES if job.layout.pipeline > 1 else GRAPHS_BYTES
        source = "Megatron-Bridge performance guide: a few GB, over 10 GB with pipelines"
        terms.append(OutsideTerm("CUDA graphs", size, source))
    return tuple(terms)


def _blas(gpu: Gpu, *, threads: int) -> OutsideTerm:
    source = "ATen CublasHandlePool.cpp: one for each thread's handle"
    return OutsideTerm("BLAS workspaces", threads * blas_bytes(gpu), source)


def blas_bytes(gpu: Gpu) -> int:
    """Return the bytes of the workspace of one of ATen's BLAS handles on this GPU."""
    if (gpu.arch or "").startswith("gfx"):
        return HIPBLASLT_BYTES
    return CUBLAS_HOPPER_BYTES if gpu.arch in LARGE_WORKSPACE else CUBLAS_BYTES
