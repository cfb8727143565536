"""Lines as projects print them, whose kind the words alone must not decide."""

from __future__ import annotations

import pytest

from memcheck.why.evidence import DEVICE, HOST, NOT_OOM, UNKNOWN
from memcheck.why.log import read_log

MIB = 2**20
LINES = [
    (NOT_OOM, "RuntimeError: No CUDA GPUs are available", None),
    (NOT_OOM, "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal address", None),
    (NOT_OOM, "double free or corruption (!prev)\nAborted (core dumped)", None),
    (NOT_OOM, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15", None),
    (NOT_OOM, "torch.distributed.DistNetworkError: Connection reset by peer", None),
    (NOT_OOM, "OSError: [Errno 28] No space left on device: '/checkpoints/step-100'", None),
    (NOT_OOM, "RuntimeError: The size of tensor a (4096) must match the size of tensor b (4097) at dimension 1", None),
    (NOT_OOM, "[rank1]: AssertionError", None),
    (NOT_OOM, "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", None),
    (
        NOT_OOM,
        "terminate called after throwing an instance of 'std::runtime_error'\nSegmentation fault (core dumped)",
        None,
    ),
    (NOT_OOM, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4398046511104.00 GiB.", None),
    (HOST, "The node was low on resource: memory. Container main was using 61Gi, request is 0.", None),
    (HOST, "Your session crashed after using all available RAM.", None),
    (HOST, "Error: model requires more system memory (5.60 GiB) than is available (3.10 GiB)", round(5.6 * 2**30)),
    (
        HOST,
        "RuntimeError: unable to open shared memory object </torch_12> in read-write mode: Cannot allocate memory",
        None,
    ),
    (HOST, "OSError: [Errno 28] No space left on device: '/dev/shm/torch_12'", None),
    (HOST, "Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.", None),
    (HOST, "State: OUT_OF_MEMORY (exit code 0)", None),
    (DEVICE, "[TensorRT] ERROR: safeRuntime.cpp (25) - Cuda Error in allocate: 2 (out of memory)", None),
    (DEVICE, "ggml_metal_get_buffer: error: failed to allocate buffer, size =  4096.00 MiB", 4096 * MIB),
    (DEVICE, "MODULE:PT_DEVMEM Allocation failed for size::1073741824 (1024)MB", 2**30),
    (DEVICE, "Could not allocate tensor with 4915840 bytes. There is not enough GPU video memory available!", 4915840),
    (
        DEVICE,
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 0 bytes).",
        8 * 10**9,
    ),
    (
        DEVICE,
        "failed to allocate 1.23G (1320702444 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        1320702444,
    ),
    (
        DEVICE,
        "torch_npu: EL0004: Failed to allocate memory. rtMalloc execute failed, reason=[driver error:out of memory]",
        None,
    ),
    (DEVICE, "Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", None),
    (
        DEVICE,
        "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 25.00M. That was not possible. There are 8.01M free.",
        25 * MIB,
    ),
    (DEVICE, "RuntimeError: No executable batch size found, reached zero.", None),
    (UNKNOWN, "Killed", None),
    (UNKNOWN, "显存够用，49G，内存不足，进程 Killed 了", None),
    (UNKNOWN, "RuntimeError: DataLoader worker (pid(s) 3216) exited unexpectedly", None),
    (
        UNKNOWN,
        "A worker process was unexpectedly terminated. This could be caused by a segmentation fault or memory usage.",
        None,
    ),
    (UNKNOWN, "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.", None),
    (UNKNOWN, "RuntimeError: Engine core initialization failed. See root cause above.", None),
    (UNKNOWN, "step 100 | loss 2.31 | memory: 44.2GiB(55%) | to avoid out of memory, set expandable segments", None),
    (UNKNOWN, "INFO: try --gpu-memory-utilization if the engine runs out of memory", None),
]


@pytest.mark.parametrize(("kind", "text", "tried"), LINES, ids=range(len(LINES)))
def test_kind_of_a_line(kind: str, text: str, tried: int | None) -> None:
    """The kind is never more certain than the line, and a size that it prints is read."""
    first = read_log(text.encode()).first
    assert (first.kind if first is not None else UNKNOWN) == kind
    if tried is not None and first is not None:
        assert first.figures["tried_bytes"].bytes == tried


def test_the_reason_comes_before_its_echoes() -> None:
    """A device message in the middle counts, not the launcher's kills, timeouts and exit codes around it."""
    log = (
        "[rank1]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n"
        "[2026] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 1840\n"
        "ERROR: failed (exitcode: -9) local_rank: 1 (pid: 12) of binary: python\n"
    )
    found = read_log(log.encode())
    assert found.first is not None
    assert (found.first.kind, found.first.rank, found.first.line) == (DEVICE, 0, 2)
    assert found.echoes == 3


def test_torchrun_names_the_rank_that_failed_first() -> None:
    """Its root cause decides which rank's message counts; the phase comes from that rank's own traceback."""
    ranks = "".join(
        f'[rank{rank}]:   File "train.py", line 7, in {where}\n'
        f"[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {rank + 2}.00 GiB.\n"
        for rank, where in ((0, "forward"), (1, "backward"))
    )
    tail = "Root Cause (first observed failure):\n[0]:\n  time : 1\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1\n"
    first = read_log((ranks + tail).encode()).first
    assert first is not None
    assert (first.rank, first.phase, first.figures["tried_bytes"].bytes) == (1, "backward", 3 * 2**30)
