"""From allocated bytes to device bytes.

``allocated`` holds the tensors that training code makes; that includes TransformerEngine's workspaces, which Python
code makes (``memory/megatron/workspaces.py``). Here is added what no tensor of the step shows: what the caching
allocator holds beyond live blocks, the driver's context, libraries' own workspaces, and communicators.

cuBLAS's workspace is a special case: ATen takes it from the caching allocator, one for each handle (the forward and the
autograd thread have one each), so ``torch.cuda.max_memory_allocated()`` of a real run reads that much more than
``allocated``. It is a library's workspace, constant for a GPU, and counted with those; Megatron's ledger has its own.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Pools
from memcheck.catalog.names import Gpu
from memcheck.job.types import InferenceJob, Overhead, TrainingJob
from memcheck.memory.allocator import Shares, kept, shares
from memcheck.memory.communicators import KERNELS_BYTES, communicator_terms
from memcheck.memory.outside import NOTHING_OUTSIDE, OutsideBytes
from memcheck.models.types import Rough
from memcheck.record import Record

MIB = 2**20

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

CUBLAS_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
CUBLAS_HOPPER_BYTES = 8 * 4096 * 1024
"""ATen's default ``CUBLAS_WORKSPACE_CONFIG`` (``aten/src/ATen/cuda/CublasHandlePool.cpp``): ``:4096:2:16:8``, on Hopper
``:4096:8``; cuBLASLt shares it (``TORCH_CUBLASLT_UNIFIED_WORKSPACE``, on by default since torch 2.7)."""
LARGE_WORKSPACE = (None, "sm_90", "sm_100", "sm_103", "sm_120")
"""Hopper, and Blackwell since pytorch/pytorch#175344; an unknown GPU gets the larger one."""
HIPBLASLT_BYTES = 76 * MIB
"""ATen's default for hipBLASLt, same file."""

GRAPHS_BYTES = 3 * 1024 * MIB
GRAPHS_PIPELINE_BYTES = 10 * 1024 * MIB
"""Megatron-Bridge's performance guide: CUDA graphs take "a few GB", with pipelines possibly over 10 GB. No formula is
known: their private pools depend on which layers are captured."""


NO_POOLS = Pools()


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
    context, libraries, communicators = (sum(size for _, size, _ in terms) for terms in terms_by_kind)
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
    stuck, cache = kept(allocator_shares, allocated, room(gpu, outside.total, allocated), pools)
    return Slack(stuck + cache, outside, cache)


def room(gpu: Gpu, outside: int, allocated: int) -> int:
    """Return the bytes of the GPU that are left for what the allocator holds beyond live tensors; may be negative."""
    return gpu.memory_bytes - outside - allocated


def context_terms(gpu: Gpu) -> tuple[tuple[str, int, str], ...]:
    """List the driver's context and the kernels that a step loads into it: name, bytes and source of each."""
    mib, source = CONTEXT.get(gpu.arch or "", CONTEXT_UNKNOWN)
    context = ("driver context", mib * MIB, source)
    if gpu.arch == "sm_75":  # the T4's context was read after a step: kernels are included
        return (context,)
    return (context, ("kernels loaded by a step", KERNELS_MIB * MIB, "fitcheck's archive: 105 to 141 MiB on a T4"))


def library_terms(job: TrainingJob | InferenceJob, gpu: Gpu) -> tuple[tuple[str, int, str], ...]:
    """List the workspaces of libraries and the pools of CUDA graphs: name, bytes and source of each.

    A training process has a BLAS handle in the forward thread and one in the autograd thread.
    """
    if isinstance(job, InferenceJob):
        return (_blas(gpu, threads=1),)
    terms = []
    if not job.framework.transformer_engine:  # TransformerEngine's workspaces are tensors of the step
        terms.append(_blas(gpu, threads=1 if isinstance(job.architecture, Rough) else 2))
    if str(job.option("cuda_graph_impl", "none")).lower() != "none":
        size = GRAPHS_PIPELINE_BYTES if job.layout.pipeline > 1 else GRAPHS_BYTES
        terms.append(("CUDA graphs", size, "Megatron-Bridge performance guide: a few GB, over 10 GB with pipelines"))
    return tuple(terms)


def _blas(gpu: Gpu, *, threads: int) -> tuple[str, int, str]:
    return "BLAS workspaces", threads * blas_bytes(gpu), "ATen CublasHandlePool.cpp: one for each thread's handle"


def blas_bytes(gpu: Gpu) -> int:
    """Return the bytes of the workspace of one of ATen's BLAS handles on this GPU."""
    if (gpu.arch or "").startswith("gfx"):
        return HIPBLASLT_BYTES
    return CUBLAS_HOPPER_BYTES if gpu.arch in LARGE_WORKSPACE else CUBLAS_BYTES
