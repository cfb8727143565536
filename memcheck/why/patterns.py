"""The table of messages: what each says of the death, and the clauses in which its figures are printed.

A pattern is looked for only in lines that hold its anchor, a word in lower case. Every repetition in an expression is
bounded, so that no line takes longer than its length. Names of sources are files of the projects that print the line.
"""

from __future__ import annotations

import re

from memcheck.record import Record
from memcheck.why.evidence import (
    ALLOCATED,
    ALLOWED,
    CERTAIN,
    FREE,
    IN_USE,
    LIKELY,
    OTHERS,
    POSSIBLE,
    PRIVATE,
    RESERVED,
    TOTAL,
    TRIED,
    UNALLOCATED,
)

ROOT, SIGN, HINT = 3, 2, 1
"""A message that names the reason itself; one that may be the reason or its echo; one that proves nothing alone."""

NUMBER = r"(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,18}(?:\.[0-9]{0,6})?)(?![0-9])"
UNIT = r" ?([KMGTP]i?B?\b|[Bb]ytes|B\b|kB\b)"
SIZE = NUMBER + UNIT
BYTES = r"(?<![0-9.,])([0-9]{1,3}(?:,[0-9]{3}){1,6}|[0-9]{1,20})(?![0-9])()"
"""A count of bytes without a unit, or with one in the words around it."""


class Clause(Record):
    """A phrase that holds one figure: group 1 is the number, group 2 its unit."""

    figure: str
    expression: re.Pattern[str]


class Pattern(Record):
    """One kind of message."""

    name: str
    kind: str
    strength: int
    """:data:`ROOT`, :data:`SIGN` or :data:`HINT`."""
    anchors: tuple[str, ...]
    """Words in lower case; a line with none of them is not looked at."""
    expression: re.Pattern[str]
    means: str
    """What it says, as a sentence for people who know nothing of memcheck."""
    clauses: tuple[Clause, ...] = ()
    certainty: str = CERTAIN
    phase: str = ""


def _clauses(*rows: tuple[str, str]) -> tuple[Clause, ...]:
    return tuple(Clause(figure, re.compile(expression, re.IGNORECASE)) for figure, expression in rows)


TORCH = _clauses(
    (TRIED, rf"tried to allocate {SIZE}"),
    (TOTAL, rf"total capac(?:ity|ty) of {SIZE}"),
    (TOTAL, rf"{SIZE} total capac"),
    (FREE, rf"of which {SIZE} (?:is|are) free"),
    (FREE, rf"; ?{SIZE} free"),
    (ALLOCATED, rf"{SIZE} already allocated"),
    (ALLOCATED, rf"{SIZE} is allocated by PyTorch"),
    (ALLOCATED, rf"Of the allocated memory {SIZE} is allocated"),
    (RESERVED, rf"{SIZE} reserved in total"),
    (UNALLOCATED, rf"{SIZE} cached\)?"),
    (UNALLOCATED, rf"{SIZE} is reserved by PyTorch but unallocated"),
    (PRIVATE, rf"with {SIZE} allocated in private pools"),
    (ALLOWED, rf"{SIZE} allowed;"),
    (IN_USE, rf"this process has {SIZE} memory in use"),
    # abridged by the libraries that print it: "GPU had 12.44 GiB free of 79.19"
    (FREE, rf"GPU had {SIZE} free"),
)
"""c10/cuda/CUDACachingAllocator.cpp of torch 1.0 to 2.11; torch_npu and c10/xpu print the same words."""
ASYNC = _clauses(
    (ALLOCATED, rf"Currently allocated\s{{0,20}}: ?{SIZE}"),
    (TRIED, rf"Requested\s{{0,20}}: ?{SIZE}"),
    (TOTAL, rf"Device limit\s{{0,20}}: ?{SIZE}"),
    (FREE, rf"Free \(according to CUDA\)\s{{0,20}}: ?{SIZE}"),
)
"""c10/cuda/CUDAMallocAsyncAllocator.cpp"""
MPS = _clauses(
    (TRIED, rf"tried to allocate {SIZE}"),
    (ALLOCATED, rf"MPS allocated: {SIZE}"),
    (OTHERS, rf"other allocations: {SIZE}"),
    (TOTAL, rf"max allowed: {SIZE}"),
)
"""aten/src/ATen/mps/MPSAllocator.mm, whose GB are 2^30 bytes"""
XLA = _clauses(
    (TRIED, rf"\({BYTES}B\)"),
    (TRIED, rf"(?:trying to allocate|Out of memory allocating|to allocate request for) {BYTES} bytes"),
    (
        TRIED,
        rf"(?:trying to allocate|attempting to (?:allocate|reserve)|allocate request for|failed to allocate) {SIZE}",
    ),
    (TRIED, rf"Used {SIZE} of [0-9]"),
    (TOTAL, rf"Used [0-9.]{{1,12}}[KMG]i?B? of {SIZE}"),
    (FREE, rf"There are {SIZE} free"),
    (TOTAL, rf"out of {SIZE} (?:hbm|total)"),
)
LIMIT = _clauses(
    (TRIED, rf"Required: {BYTES}"),
    (TOTAL, rf"Hardware limit: ?{BYTES}"),
    (TRIED, rf"requested:? {BYTES}"),
    (TOTAL, rf"available:? {BYTES}"),
)
ASKED = _clauses(
    (TRIED, rf"(?:allocat(?:e|ing)|size:?|requested|needed|store|space to allocate|asked for) (?:about )?{SIZE}"),
    (TRIED, rf"(?:allocat(?:e|ing)|of size|requested|needed) {BYTES}"),
)
RAY = _clauses((TOTAL, rf"was [0-9.]{{1,12}}GB / {SIZE}"), (IN_USE, rf"was {SIZE} / [0-9]"))
KERNEL = _clauses((IN_USE, rf"anon-rss:{SIZE}"))
RESIDENT = re.compile(rf"\b(?:anon|file|shmem)-rss:{SIZE}")
"""A process's resident memory in the kernel's line is the sum of the three."""
PADDLE = _clauses(
    (TRIED, rf"Cannot allocate {SIZE} (?:GPU )?memory"),
    (ALLOCATED, rf", {SIZE} memory has been allocated"),
    (FREE, rf"available memory is (?:only )?{SIZE}"),
)
VLLM_KV = _clauses(
    (TRIED, rf"\(?{SIZE} KV cache is needed"),
    (FREE, rf"available KV cache memory \({SIZE}"),
    (FREE, rf"Free memory on device (?:cuda:[0-9]{{1,3}} )?\({NUMBER}/[0-9.]{{1,12}} ([GM]iB)"),
    (TOTAL, rf"Free memory on device (?:cuda:[0-9]{{1,3}} )?\([0-9.]{{1,12}}/{SIZE}"),
)

COMMON = "error: "
"""A word of so many harmless lines that only the end of a log is searched for it."""
GPU_FULL = "The GPU ran out of memory."
HOST_FULL = "The host ran out of memory, not the GPU."


def _row(
    head: str, expression: str, means: str, clauses: tuple[Clause, ...] = (), certainty: str = CERTAIN, phase: str = ""
) -> Pattern:
    """One row of the table. ``head``: name, kind, strength, then its anchors with ``|`` between them."""
    name, kind, strength, anchors = head.split(" ", 3)
    compiled = re.compile(expression, re.IGNORECASE)
    number = {"root": ROOT, "sign": SIGN, "hint": HINT}[strength]
    return Pattern(
        name=name,
        kind=kind,
        strength=number,
        anchors=tuple(anchors.split("|")),
        expression=compiled,
        means=means,
        clauses=clauses,
        certainty=certainty,
        phase=phase,
    )


def _sized(expression: str, clauses: tuple[Clause, ...] = ASKED) -> tuple[Clause, ...]:
    return (*_clauses((TRIED, expression)), *clauses)


PATTERNS: tuple[Pattern, ...] = (
    # memory that a kernel needs within one block of threads
    _row("triton-resources shared-memory root out of resource", r"out of resource: ?(?:shared|tensor) memory", "A kernel asks for more shared memory than one block of this GPU has.", LIMIT),
    _row("triton-registers not-oom root out of resource", r"out of resource: ?(?:registers|threads)", "A kernel asks for more registers or threads than one block of this GPU has."),
    _row("ptxas-shared shared-memory root too much shared data", r"uses too much shared data", "A kernel asks for more shared memory than one block of this GPU has."),
    _row("dynamic-shared shared-memory root shared memory size", r"(?:Failed to set the allowed dynamic|limit exceeded|exceeds).{0,40}shared memory size|shared memory size.{0,40}(?:exceed|limit)", "A kernel asks for more shared memory than one block of this GPU has.", LIMIT),
    _row("tpu-vmem shared-memory root memory space vmem", r"memory in memory space vmem", "A kernel asks for more of the TPU core's own memory than there is.", XLA),
    # not out of memory, whatever the words
    _row("torch-absurd not-oom root more than 1eb", r"tried to allocate more than 1EB", "A size that no memory has was asked for: the size itself is wrong, such as one that was never received."),
    _row("illegal-address not-oom root illegal memory access", r"illegal memory access", "A kernel used a wrong address. That is a defect or wrong input, not a lack of memory."),
    _row("device-assert not-oom root device-side assert", r"device-side assert", "A check inside a kernel failed, such as an index out of range. That is no lack of memory."),
    _row("cuda-other not-oom root cuda error|hip error|cuda driver error|hip driver error|cuda failure", r"(?:CUDA|HIP) (?:driver )?(?:error|failure):? ?[0-9]{0,3}:? ?'?(?:misaligned address|unspecified launch failure|an illegal instruction|invalid device|no kernel image|initialization error|invalid configuration|invalid argument|uncorrectable|peer access|the launch timed out|driver shutting down|device not ready|operation not|unknown error|hardware stack error|system not yet)", "The GPU or its driver reports an error that is no lack of memory."),
    _row("cuda-init not-oom root cuda failure", r"Cuda failure (?:[0-9]{1,4} )?'(?!out of memory)", "The GPU or its driver reports an error that is no lack of memory."),
    _row("cublas-other not-oom root _status_", r"CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_(?:EXECUTION_FAILED|INVALID_VALUE|BAD_PARAM|NOT_SUPPORTED|ARCH_MISMATCH|MAPPING_ERROR)", "A library reports an error that is no lack of memory.", (), LIKELY),
    _row("rocm-fault not-oom root memory access fault", r"memory access fault by GPU", "A kernel used a wrong address. That is a defect or wrong input, not a lack of memory."),
    _row("xid not-oom root nvrm: xid|fallen off the bus", r"NVRM: Xid|fallen off the bus", "The driver reports a fault of the GPU."),
    _row("ggml-plan not-oom root not enough space in the", r"not enough space in the (?:buffer|context's memory pool)", "A buffer of a size that the program planned itself is too small. That is a defect, not a lack of memory.", _clauses((TRIED, rf"needed {BYTES}"))),
    _row("flashinfer not-oom root buffer overflow", r"buffer overflow when allocating memory for", "A work buffer of a fixed size is too small. The setting of its size helps, more memory does not."),
    _row("vllm-profiling not-oom root memory profiling", r"error in memory profiling", "Another process released GPU memory while the engine measured it.", (), LIKELY),
    _row("time-limit not-oom sign due to time limit", r"CANCELLED AT .{0,40}DUE TO TIME LIMIT", "The job reached its time limit, and the scheduler ended it. That is no lack of memory."),
    _row("preempted not-oom sign due to preemption|due to node fail", r"CANCELLED AT .{0,40}DUE TO (?:PREEMPTION|NODE FAIL)", "The scheduler ended the job: it was preempted, or a node failed. That is no lack of memory."),
    _row("lsf-time not-oom sign term_runlimit", r"TERM_RUNLIMIT", "The job reached its time limit, and the scheduler ended it. That is no lack of memory."),
    _row("slots not-oom root runs out of memory", r"alloc_(?:req_slots|token_slots|extend)\w{0,10} runs out of memory", "A pool of the server is full: the number of requests that it was started for. The GPU's memory is not what is short."),
    _row("no-gpu not-oom root no cuda gpus|no nvidia driver|driver version is insufficient|initialize nvml", r"No CUDA GPUs are available|Found no NVIDIA driver|driver version is insufficient|Failed to initialize NVML", "The program found no GPU that it can use."),
    _row("error-code not-oom root cudaerrorillegaladdress|cuda_error_illegal_address|cuda_error_launch_failed|cudaerrorlaunchfailure|cudaerrorassert|cuda_error_assert", r"(?:CUDA_ERROR_|cudaError)(?:ILLEGAL_?ADDRESS|LAUNCH_?FAIL\w{1,3}|ASSERT)", "A kernel failed: a wrong address or a failed check. That is no lack of memory."),
    _row("corruption not-oom sign double free|corrupted size|invalid pointer|stack smashing", r"double free or corruption|corrupted size|free\(\): invalid|stack smashing", "A program damaged its own memory and was stopped. That is no lack of memory.", (), LIKELY),
    _row("signal not-oom sign got signal|sigterm", r"got signal: (?:1|2|6|11|15)\b|Received SIGTERM|(?<!closing )signal SIGTERM|SIGTERM received", "The run was stopped from outside. The line does not show a lack of memory.", (), LIKELY),
    _row("network not-oom sign by peer|by remote peer|socket timeout|distnetworkerror|diststoreerror|heartbeat", r"connection (?:was )?(?:reset|refused|closed) by (?:remote )?peer|Socket Timeout|Dist(?:Network|Store)Error|heartbeat (?:monitor )?timed? ?out", "The connection to another rank ended. The line does not show a lack of memory.", (), LIKELY),
    _row("files not-oom sign too many open files", r"too many open files", "The process reached its limit of open files.", (), LIKELY),
    # host memory
    _row("slurm-oom host root oom-kill event|oom_kill event|oom_kill", r"oom[-_]kill event|oom_kill\b.{0,40}event", "The host ran out of memory, not the GPU: Slurm's memory limit of the job (--mem) was reached."),
    _row("slurm-task-oom host root out of memory", r"(?:srun|slurmstepd|slurmd): ?(?:error: )?.{0,80}Out[ -]Of[ -]Memory", "The host ran out of memory, not the GPU: Slurm reports a task that reached its memory limit (--mem)."),
    _row("slurm-state host root out_of_me", r"\bOUT_OF_ME(?:MORY\b|\+)(?!_ERROR)(?<!ERROR_OUT_OF_MEMORY)(?<!NV_ERR_OUT_OF_MEMORY)", "The host ran out of memory, not the GPU: Slurm gives the state OUT_OF_MEMORY."),
    _row("slurm-limit host root memory limit", r"exceeded (?:job|step|virtual|process) memory limit|gone over memory limit|TERM_MEMLIMIT|memory limit.{0,60}being killed", "The host ran out of memory, not the GPU: the job's memory limit was reached."),
    _row("lsf-mem host root term_memlimit", r"TERM_MEMLIMIT", "The host ran out of memory, not the GPU: the job's memory limit was reached."),
    _row("pbs-mem host root exceeded limit", r"job killed: v?mem .{0,40}exceeded limit", "The host ran out of memory, not the GPU: the job's memory limit was reached."),
    _row("kernel-oom host root out of memory", r"out of memory: kill(?:ed)? process", "The host ran out of memory, not the GPU: the kernel killed a process.", KERNEL),
    _row("kernel-oom-line host root oom-kill:|oom-killer", r"oom-kill:constraint|invoked oom-killer", "The host ran out of memory, not the GPU: the kernel killed a process.", KERNEL),
    _row("container-oom host root oomkilled", r"OOMKilled\W{0,6}(?!\W{0,4}false)", "The host ran out of memory, not the GPU: the container's memory limit was reached."),
    _row("cgroup-oom host root cgroup out-of-memory", r"cgroup out-of-memory", "The host ran out of memory, not the GPU: the job's memory limit was reached."),
    _row("ray-oom host root running low on memory|ray.exceptions.outofmemoryerror|rayoutofmemoryerror|memory pressure", r"node running low on memory|RayOutOfMemoryError|ray\.exceptions\.OutOfMemoryError|killed due to (?:memory pressure|the node running low)", "The host ran out of memory, not the GPU: Ray killed a task to protect the node.", RAY),
    _row("worker-killed host root killed by signal", r"DataLoader worker .{0,60}killed by signal: Killed", "The host ran out of memory, not the GPU: a data loader's worker was killed."),
    _row("shm-bus host root bus error", r"bus error.{0,120}(?:shared memory|shm)|killed by signal: Bus error", "Shared memory of the host (/dev/shm) is full, not the GPU: data loaders and NCCL exchange data there."),
    _row("shm-nccl host root /dev/shm", r"(?:creating shared memory segment|failed to extend|unable to (?:open|write)).{0,40}/dev/shm", "Shared memory of the host (/dev/shm) is full, not the GPU: data loaders and NCCL exchange data there.", (), LIKELY),
    _row("shm-full host root no space left on device", r"(?:/dev/shm|shm_open|</torch_|nccl-|shared memory|posix_fallocate).{0,200}no space left on device|no space left on device.{0,120}(?:/dev/shm|shared memory|torch_)", "Shared memory of the host (/dev/shm) is full, not the GPU: data loaders and NCCL exchange data there."),
    _row("disk not-oom sign no space left on device", r"no space left on device", "A disk is full. That is no lack of memory.", (), LIKELY),
    _row("evicted host root low on resource: memory|systemd-oomd", r"low on resource: memory|systemd-oomd", "The host ran out of memory, not the GPU: the node ended the process to protect itself."),
    _row("notebook host root using all available ram|more memory than is available", r"using all available RAM|notebook tried to allocate more memory than is available", HOST_FULL),
    _row("object-store host root objectstorefullerror|object store memory", r"ObjectStoreFullError|object store memory.{0,40}(?:full|exceed)", "The host's shared memory for Ray's objects is full. The GPU's memory is not what is short."),
    _row("ollama host root more system memory", r"requires more system memory", HOST_FULL, _clauses((TRIED, rf"system memory \({SIZE}"), (FREE, rf"than is available \({SIZE}"))),
    _row("host-code host root out_of_host_memory", r"OUT_OF_HOST_MEMORY", HOST_FULL),
    _row("torch-cpu host root defaultcpuallocator", r"DefaultCPUAllocator: ?(?:can't allocate|not enough|cannot)", HOST_FULL, _clauses((TRIED, rf"tried to allocate {BYTES} bytes"), (TRIED, rf"(?:Buy new RAM|allocate) {BYTES}"))),
    _row("torch-cpu-enforce host root alloc_cpu", r"enforce fail at .{0,60}alloc_cpu", HOST_FULL, _clauses((TRIED, rf"tried to allocate {BYTES} bytes"))),
    _row("numpy host root unable to allocate", r"Unable to allocate .{0,40}for (?:an )?array", HOST_FULL, _clauses((TRIED, rf"Unable to allocate {SIZE}"))),
    _row("rmm device root bad_alloc", r"bad_alloc.{0,60}(?:out_of_memory: ?CUDA|cudaErrorMemoryAllocation|RMM)", GPU_FULL),
    _row("bad-alloc host root bad_alloc", r"std::bad_alloc", HOST_FULL, (), LIKELY),
    _row("python-memory host root memoryerror", r"(?:^|[\s:])MemoryError(?::|\s|$)", HOST_FULL),
    _row("errno-12 host root cannot allocate memory", r"cannot allocate memory", HOST_FULL, _clauses((TRIED, rf"(?:mmap|allocate) {BYTES} bytes"))),
    _row("page-file host root paging file", r"paging file is too small", HOST_FULL),
    _row("pinned host root pinned host memory", r"could not allocate pinned host memory", "The host could not give pinned memory. The GPU's memory is not what is short.", _clauses((TRIED, rf"of size:? {BYTES}"))),
    _row("ggml-cpu host root failed to allocate", r"failed to allocate (?:CPU|CPU_\w{1,20}|CUDA_Host|host)\b.{0,20}buffer|ggml_aligned_malloc: insufficient memory", HOST_FULL, _clauses((TRIED, rf"of size {BYTES}"))),
    _row("tf-cpu host root oom when allocating", r"OOM when allocating tensor.{0,300}device:CPU", HOST_FULL),
    _row("heap host root java.lang.outofmemoryerror|heap out of memory", r"java\.lang\.OutOfMemoryError|JavaScript heap out of memory", "A program of the host used up its own heap. The GPU's memory is not what is short."),
    # device memory
    _row("mps device root mps backend out of memory", r"MPS backend out of memory", GPU_FULL, MPS),
    _row("mps-buffer device root invalid buffer size", r"Invalid buffer size: ", "One buffer is larger than the GPU allows.", _clauses((TRIED, rf"Invalid buffer size: {SIZE}"))),
    _row("torch device root tried to allocate", rf"(?<!you )tried to allocate {SIZE}", GPU_FULL, TORCH),
    _row("vllm-sampler device root out of memory", r"out of memory occurred when warming up", "The GPU ran out of memory while the serving engine warmed up.", (), CERTAIN, "warm-up"),
    _row("torch-async device root allocation on device", r"Allocation on device", GPU_FULL, ASYNC),
    _row("bitsandbytes device root out of memory at line", r"Error out of memory at line", GPU_FULL),
    _row("ggml device root cudamalloc", r"cudaMalloc(?:Async|Managed)? ?(?:retry )?(?:failed|error)", GPU_FULL, _sized(rf"allocating {SIZE} on device")),
    _row("ggml-buffer device root failed to allocate", r"failed to allocate (?:CUDA|ROCm|Vulkan|SYCL|Metal|HIP)[0-9]{0,3} ?(?:buffer|compute)", GPU_FULL, _clauses((TRIED, rf"of size {BYTES}"))),
    _row("error-name device root cudaerrormemoryallocation|cuda_error_out_of_memory|hiperroroutofmemory|hip_error_outofmemory|hiperrormemoryallocation|out_of_device_memory|outofdevicememory|cl_mem_object_allocation_failure|erroroutofmemory|nv_err_no_memory", r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|HIP_ERROR_OutOfMemory|hipErrorMemoryAllocation|ERROR_OUT_OF_DEVICE_MEMORY|ErrorOutOfDeviceMemory|OutOfDeviceMemory|CL_MEM_OBJECT_ALLOCATION_FAILURE|kIOGPUCommandBufferCallbackErrorOutOfMemory|NV_ERR_NO_MEMORY", GPU_FULL, _clauses((TRIED, rf"failed to allocate (?:[0-9.]{{1,10}}[KMG]i?B? )?\(?{BYTES} bytes"), (TRIED, rf"allocate {SIZE}"))),
    _row("cuda-error device root out of memory", r"(?:CUDA|HIP|NPU|XPU|MLU|MUSA|ROCm|GPU|cuMemCreate|cuMemAlloc|hipMalloc\w{0,10}|NVML)\W{0,3}(?:[Rr]untime |driver |API )?(?:error|failure|failed)?[^\n]{0,24}?\bout of memory", GPU_FULL, TORCH),
    _row("cublas-alloc device root alloc_failed", r"CU(?:BLAS|DNN|SPARSE|SOLVER|FFT|RAND)_(?:STATUS_)?ALLOC_FAILED|(?:HIPBLAS|rocblas)_status_alloc_failed", "The GPU ran out of memory: a library found no room for its work buffer or handle."),
    _row("rocblas-memory device root memory_error", r"rocblas_status_memory_error|MIOPEN_STATUS_ALLOC", "The GPU ran out of memory: a library found no room for its work buffer."),
    _row("cupy device root out of memory allocating", r"out of memory allocating [0-9]", GPU_FULL, XLA),
    _row("xla-hbm device root memory space hbm", r"Ran out of memory in memory space hbm", "The TPU ran out of memory: the compiled program does not fit.", XLA),
    _row("xla device root resource exhausted|resource_exhausted", r"resource[_ ]exhausted.{0,80}(?:out of memory|failed to allocate|attempting to (?:allocate|reserve)|ran out of memory|allocat)", GPU_FULL, XLA),
    _row("tf-shape device root oom when allocating", r"OOM when allocating tensor", GPU_FULL),
    _row("tf-allocator device sign ran out of memory trying", r"Allocator \(GPU.{0,40}ran out of memory trying to allocate", GPU_FULL, XLA, LIKELY),
    _row("onnxruntime-cpu host root requested buffer of size", r"(?:_nchwc|for Cpu|CPUExecutionProvider).{0,400}requested buffer of size", "The host ran out of memory, not the GPU: the session runs on the CPU.", _clauses((TRIED, rf"requested buffer of size {BYTES}"))),
    _row("onnxruntime device root requested buffer of size", r"Failed to allocate memory for requested buffer", "The memory arena of ONNX Runtime could not grow: device memory, unless the session runs on the CPU.", _clauses((TRIED, rf"requested buffer of size {BYTES}")), LIKELY),
    _row("onnxruntime-arena device root smaller than requested", r"Available memory of [0-9]{1,18} is smaller than requested bytes of", "The memory limit of ONNX Runtime's arena was reached.", _clauses((TRIED, rf"requested bytes of {BYTES}"), (FREE, rf"Available memory of {BYTES}"))),
    _row("vllm-no-blocks device root no available memory for the cache", r"No available memory for the cache blocks", "The GPU has no memory left for the KV cache: the weights and buffers of the serving engine fill its share.", (), CERTAIN, "kv cache"),
    _row("vllm-kv-tokens device root larger than the maximum number|larger than the available|kv cache is needed", r"(?:larger than the (?:maximum number of tokens|available KV cache)|KV cache is needed, which is larger)", "The KV cache that fits on the GPU is smaller than one sequence of the model's maximum length.", VLLM_KV, CERTAIN, "kv cache"),
    _row("vllm-startup device root less than desired gpu memory", r"is less than desired GPU memory utilization", "Less GPU memory is free at the start than the serving engine was told to use.", VLLM_KV, CERTAIN, "init"),
    _row("sglang-fraction device root not enough memory", r"Not enough memory\. Please try to (?:increase|decrease)|Not enough memory to handle|Not enough (?:GPU )?memory (?:for|to)", "The GPU has no memory left for the KV cache: the weights and buffers of the serving engine fill its share.", (), CERTAIN, "kv cache"),
    _row("sglang-unbalanced device root memory capacity is unbalanced", r"memory capacity is unbalanced", "The GPUs have different amounts of free memory: other processes are on some of them."),
    _row("trtllm-kv device root insufficient memory|not enough memory|not enough gpu memory|not enough free memory", r"(?:not enough|insufficient) (?:GPU |free )?memory.{0,80}kv ?cache|kv ?cache.{0,80}(?:not enough|insufficient) (?:GPU |free )?memory", "The GPU has no memory left for the KV cache.", (), CERTAIN, "kv cache"),
    _row("paddle-enforce device root allocating <= available", r"enforce allocating <= available failed", GPU_FULL, _clauses((TRIED, rf"failed, {BYTES} >"), (FREE, rf"failed, [0-9]{{1,18}} > {BYTES}"))),
    _row("sglang-pool device root out of memory", r"(?:Prefill|Decode) out of memory", "The KV cache of the serving engine is full.", (), CERTAIN, "kv cache"),
    _row("paddle device root out of memory error on", r"Out of memory error on (?:GPU|XPU|NPU|DCU)", GPU_FULL, PADDLE),
    _row("mindspore device root memory isn't enough", r"memory isn't enough and alloc failed", GPU_FULL, _clauses((TRIED, rf"alloc size: {SIZE}"))),
    _row("ascend device root failed to allocate", r"EL0004.{0,40}Failed to allocate memory|NPU.{0,40}failed to allocate", GPU_FULL),
    _row("openvino device root exceeded max size of memory", r"Exceeded max size of memory object allocation", "One buffer is larger than the GPU allows.", _clauses((TRIED, rf"requested {BYTES} bytes"))),
    _row("tenstorrent device root not enough space to allocate", r"Not enough space to allocate [0-9]{1,18} B", GPU_FULL, _clauses((TRIED, rf"space to allocate {SIZE}"))),
    _row("mlx device root maximum allowed buffer size", r"greater than the maximum allowed buffer size", "One buffer is larger than the GPU allows.", _clauses((TRIED, rf"allocate {BYTES} bytes"))),
    _row("metal device root insufficient memory", r"Insufficient Memory \(0{0,8}8", GPU_FULL),
    _row("neuron device root failed to allocate", r"(?:NRT|TDRV|NMGR).{0,80}failed to allocate", GPU_FULL, _clauses((TRIED, rf"failed to allocate {SIZE}"))),
    _row("accelerate-batch device root no executable batch size", r"No executable batch size found", "The GPU ran out of memory at every batch size, down to one."),
    _row("ggml-device device root unable to allocate|failed to allocate buffer, size|device memory allocation of size", r"unable to allocate (?:CUDA|ROCm|Vulkan|SYCL|Metal)\w{0,4} buffer|failed to allocate buffer, size = |Device memory allocation of size [0-9]", GPU_FULL, _clauses((TRIED, rf"size = {{0,4}}{SIZE}"), (TRIED, rf"allocation of size {BYTES}"))),
    _row("tensorrt device root outofmemory (no further|error code 2: outofmemory", r"OutOfMemory \(no further|Error Code 2: OutOfMemory", GPU_FULL),
    _row("level-zero device root pi_error_out_of_resources|ur_result_error_out_of_resources|pi_error_mem_object", r"(?:PI_ERROR|UR_RESULT_ERROR)_(?:OUT_OF_RESOURCES|MEM_OBJECT_ALLOCATION_FAILURE)", GPU_FULL, (), LIKELY),
    _row("habana device root allocation failed for size", r"PT_DEVMEM.{0,40}Allocation failed for size", GPU_FULL, _clauses((TRIED, rf"size::? ?{BYTES}"))),
    _row("ascend-driver device root el0004|driver error:out of memory", r"EL0004|driver error:out of memory", GPU_FULL),
    _row("directml device root not enough gpu video memory", r"not enough GPU video memory", GPU_FULL, _clauses((TRIED, rf"tensor with {BYTES} bytes"))),
    _row("plain-torch device sign outofmemoryerror", r"(?:torch(?:\.cuda)?\.|AcceleratorError).{0,12}OutOfMemoryError", GPU_FULL, TORCH),
    # ends of a process that another reason may explain
    _row("exit-kill host sign exitcode|exit code|return code|exit status|exited with|status code", r"exit ?code:? {0,12}:? {0,12}-9\b|exits with return code = -9|exit(?:ed)?(?: with)?(?: status)?(?: code)?:? {0,4}\(?137\b", "A process was killed from outside (SIGKILL) and left no message. Almost always the host ran out of memory.", (), LIKELY),
    _row("sigkill host sign sigkill", r"died with <Signals\.SIGKILL|terminated (?:with|by) signal SIGKILL|Signal 9 \(SIGKILL\) received|SIGKILL \(signal 9\)", "A process was killed from outside (SIGKILL) and left no message. Almost always the host ran out of memory.", (), LIKELY),
    _row("exit-crash not-oom sign exitcode|exit code|return code|exit status|exited with", r"exit ?code:? {0,12}:? {0,12}-(?:11|6|15|7|4|2|8)\b|exits with return code = -(?:11|6|15|7|4|2|8)\b|exit(?:ed)?(?: with)?(?: status| code)?:? ?(?:139|134|143|130)\b", "A process ended by a signal that is no sign of lacking memory, such as a segmentation fault or a stop from outside.", (), LIKELY),
    _row("segfault not-oom sign segmentation fault", r"(?<!caused by a )segmentation fault", "A process crashed with a segmentation fault. That is no lack of memory.", (), LIKELY),
    _row("worker-signal not-oom sign killed by signal", r"killed by signal: (?!Killed|Bus)", "A data loader's worker ended by a signal that is no sign of lacking memory.", (), LIKELY),
    _row("watchdog not-oom sign operation timeout", r"Watchdog caught collective operation timeout|collective operation timeout", "A collective operation waited too long for another rank. This log does not show why that rank stopped.", (), LIKELY),
    _row("timed-out not-oom sign timed out", r"ncclCommInitRank.{0,80}timed out|Timed out (?:initializing|waiting)", "A rank waited too long for another. This log does not show why that one stopped.", (), LIKELY),
    _row("nccl-system not-oom sign ncclsystemerror|ncclremoteerror|ncclinternalerror|ncclinvalidusage|unhandled system error", r"ncclSystemError|ncclRemoteError|ncclInternalError|ncclInvalidUsage|unhandled system error", "NCCL failed to communicate. The log does not show a lack of memory.", (), LIKELY),
    _row("library-init unknown sign _status_not_initialized|_status_internal_error", r"CU(?:BLAS|DNN)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)", "A library could not start. A full GPU is one possible reason of several.", (), POSSIBLE),
    _row("nccl-cuda unknown sign unhandled cuda error", r"unhandled cuda error", "NCCL met an error of CUDA that this line does not name.", (), POSSIBLE),
    _row("killed unknown hint killed", r"(?:^|\s)Killed\s*$|[0-9] Killed {2,40}\S", "A process was killed. The line does not say why: host memory, a time limit or a person.", (), POSSIBLE),
    _row("launcher-kill unknown hint killing subprocess", r"sigkill_handler\] Killing subprocess", "The launcher ended the other processes after one of them had died. The lines do not say of what.", (), POSSIBLE),
    _row("actor-died unknown hint died unexpectedly", r"actor died unexpectedly|worker died unexpectedly|died unexpectedly", "A process died and left no message. The lines do not say of what.", (), POSSIBLE),
    _row("interrupt not-oom hint keyboardinterrupt", r"KeyboardInterrupt", "A person or the scheduler stopped the run.", (), LIKELY),
    _row("video-memory device hint 显存", r"^(?!.*(?:[Kk]illed|内存|RAM)).{0,400}[0-9] ?G(?![A-Za-z]).{0,200}显存", "The text asks about GPU memory. It holds no error message.", _clauses((TRIED, rf"{NUMBER} ?(G(?:i?B)?)(?![A-Za-z])")), POSSIBLE),
    _row("worker-gone unknown hint exited unexpectedly|unexpectedly terminated|terminated abruptly", r"exited unexpectedly|unexpectedly terminated|terminated abruptly", "A process ended and left no message. The lines do not say of what.", (), POSSIBLE),
    _row("rocm-resources unknown hint hsa_status_error_out_of_resources", r"HSA_STATUS_ERROR_OUT_OF_RESOURCES", "The runtime of ROCm lacked memory, threads or events. The line does not say which.", (), POSSIBLE),
    _row("runtime-error not-oom hint runtimeerror: ", r"^(?:E +|\[rank[0-9]{1,6}\]: ?)?RuntimeError: (?!.{0,200}(?:CUDA|HIP|NPU|XPU|NCCL|cu[A-Z]|Triton|memory|worker|process|Engine|engine|died|killed|Killed|communicator|aborted))[A-Za-z\[\"'({]", "The log ends with an error that is no lack of memory.", (), LIKELY),
    _row("exception not-oom hint error: |assertionerror|notimplementederror", r"^(?:E +|\[rank[0-9]{1,6}\]: ?)?(?:[\w.]{1,80}\.)?(?!OutOfMemory|ChildFailed|CalledProcess|Runtime|RayTask|RayActor|BrokenPipe|ConnectionReset|DistBackend|EOF|Accelerator|ResourceExhausted|XlaRuntime|JaxRuntime|InternalError)[A-Z]\w{0,40}Error(?:: \S|$)", "The log ends with an error that is no lack of memory.", (), LIKELY),
)  # fmt: skip
"""Patterns in the order in which they are tried: the first that matches a line decides."""

ANCHORS: tuple[str, ...] = tuple(dict.fromkeys(word for pattern in PATTERNS for word in pattern.anchors))

PHASES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(expression, re.IGNORECASE))
    for phase, expression in (
        ("graph capture", r"capture_end|capture_model|cuda_?graph"),
        ("warm-up", r"_dummy_run|_dummy_sampler|profile_run|warm_?up|determine_num_available|apply_top_k_top_p"),
        ("kv cache", r"initialize_kv_cache|allocate_kv_cache|_allocate_kv|KVCache|kv_pool|MHATokenToKVPool"),
        ("save", r"save_checkpoint|save_pretrained|save_model|_save_|get_model_state_dict|state_dict_type|consolidate"),
        ("backward", r"\.backward\(|_engine_run_backward|run_backward|in backward\b|loss\.backward|backward_step"),
        ("optimizer", r"optim(?:izer)?[./_]?(?:step|py)|in step\b|_init_group|_multi_tensor|_foreach_|_single_tensor|adamw?\b.{0,20}step|\bstep\(self, closure|clip_grad"),
        ("evaluation", r"evaluation_loop|prediction_step|in evaluate\b|validation_step|nested_concat|pad_across|_pad_and_gather"),
        ("load", r"from_pretrained|_load_state_dict|load_checkpoint|load_state_dict|load_model|load_weights|in convert\b|load_pretrained|create_weights|default_loader|shard_loader|\.to\(device|model\.cuda\(|Loading checkpoint shards"),
        ("init", r"initialize_optimizer|init_process_group|_initialize|deepspeed\.initialize|Before initializing optimizer states|in __init__"),
        ("loss", r"cross_entropy|compute_loss|log_?prob|log_?softmax|logits|loss_fn|loss_function|entropy_from|in loss\b|lm_head"),
        ("forward", r"in forward\b|_call_impl|_wrapped_call|attention|F\.linear|all_gather|fetch_sub_module|torch/nn/functional|decoder"),
    )
)  # fmt: skip
"""Phases of a run and the frames that show them; in a traceback the innermost frame that shows one decides."""

RANKS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(each, re.IGNORECASE)
    for each in (
        r"^\s{0,8}\[rank ?([0-9]{1,6})\]",
        r"^\s{0,8}\[default([0-9]{1,6})\]",
        r"^\s{0,8}\[[0-9]{1,4}, ?([0-9]{1,6})\]<std",
        r"^\s{0,8}([0-9]{1,6}): ",
        r"^.{0,60}\(\w{0,40} ?rank=([0-9]{1,6})",
        r"^.{0,60}\(\w{0,20}Worker_(?:PP[0-9]{1,3}_)?TP([0-9]{1,6})",
        r"^.{0,60}[ \[]TP([0-9]{1,4})[ \]]",
        r"^.{0,60}\brank ?[_:=]{0,1} ?([0-9]{1,6})(?= ?[\s\](:,])",
    )
)
"""How launchers, loggers and ``srun --label`` mark the rank of a line; group 1 is the rank."""
LOCAL_RANK = re.compile(r"local[_ ]rank: ([0-9]{1,6})")
GPU = re.compile(r"\b(?:GPU|NPU|XPU|cuda:|device|ordinal|DEVICE) ?([0-9]{1,4})\b")
NCCL_GPU = re.compile(r"\b[\w.-]{1,80}:[0-9]{1,9}:[0-9]{1,9} \[([0-9]{1,3})\]")
PROCESS = re.compile(rf"Process ([0-9]{{1,10}}) has {SIZE} memory in use", re.IGNORECASE)
ROOT_CAUSE = re.compile(r"Root Cause.{0,400}?\brank +: ([0-9]{1,6})", re.DOTALL)
