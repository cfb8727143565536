"""The catalog of GPUs, and what an accelerator's architecture can compute, as far as training needs it."""

from __future__ import annotations

import os
from functools import lru_cache

from memcheck.catalog.names import DATA, Gpu, UnknownNameError, canonical_names, find_record
from memcheck.edge.own_json import read_own_json
from memcheck.edge.screen import whole_number
from memcheck.record import Record

SIZES = os.path.join(DATA, "gpus", "sizes.json")


class GpuSize(Record):
    """What a GPU is chosen by among others; the rest of it is in its record."""

    name: str
    memory_bytes: int
    arch: str | None
    bf16_tflops: float | None
    gpus_per_node: int | None


@lru_cache(maxsize=512)
def find_gpu(name: str) -> Gpu:
    """The GPU called ``name``: catalog name, device name or marketing name, in any case.

    Raises:
        UnknownNameError: the catalog has no such GPU.
        AmbiguousNameError: the name stands for cards of different memory.
    """
    try:
        canonical, record = find_record("gpu", name)
    except UnknownNameError as error:
        _explain(error, name)
        raise
    return Gpu(
        name=canonical,
        memory_bytes=record["memory_bytes"],
        arch=record.get("arch"),
        bf16_tflops=record.get("bf16_tflops"),
        fp16_tflops=record.get("fp16_tflops"),
        fp8_tflops=record.get("fp8_tflops"),
        hbm_gbs=record.get("hbm_gbs"),
        nvlink_gbs=record.get("nvlink_gbs"),
        gpus_per_node=record.get("gpus_per_node"),
        source=record["source"],
        fp32_tflops=record.get("fp32_tflops"),
        multiprocessors=record.get("multiprocessors"),
        bf16_efficiency=record.get("bf16_efficiency"),
        fp8_efficiency=record.get("fp8_efficiency"),
        nvlink_gpus=record.get("nvlink_gpus"),
        pcie_gbs=record.get("pcie_gbs"),
        network_gbs=record.get("network_gbs"),
        peer_access=record.get("peer_access", True),
        context_read=record.get("context_read", False),
    )


def _explain(error: UnknownNameError, name: str) -> None:
    """Set the help of ``error``, if ``name`` is a cloud's machine type, or a GPU with a scheduler's count after it."""
    from memcheck.plan.foreign import counted, instance

    machine, several = instance(name), counted(name)
    if machine is not None:
        error.help = f"it is a machine with {machine[1]} x {machine[0]}: name the GPU"
    elif several is not None:
        error.help = f"name the GPU alone, {several[0]}; the number of GPUs in a node is `gpus_per_node: {several[1]}`"


def gpu_names() -> tuple[str, ...]:
    """Names of every GPU, sorted."""
    return canonical_names("gpu")


@lru_cache(maxsize=1)
def gpu_sizes() -> tuple[GpuSize, ...]:
    """Every GPU of the catalog by name, from one table: to read all records takes longer than to judge a plan."""
    return tuple(GpuSize(*row) for row in read_own_json(SIZES))


NO_BF16_GFX = ("gfx900", "gfx906")
"""AMD generations before the bf16 matrix instructions of gfx908 (MI100)."""
FP8_GFX = ("gfx94", "gfx95", "gfx12")
"""AMD generations with fp8 matrix instructions: MI300 and later."""


def compute_capability(gpu: Gpu) -> int | None:
    """NVIDIA's compute capability as one number (``sm_89`` is 89); None for others and unknown ones."""
    if gpu.arch is None or not gpu.arch.startswith("sm_"):
        return None
    return whole_number(gpu.arch[3:].rstrip("abf"))


def lacks_bf16(gpu: Gpu) -> bool:
    """True when it is known that there are no bf16 matrix products (before Ampere)."""
    capability = compute_capability(gpu)
    if capability is not None:
        return capability < 80
    return (gpu.arch or "").startswith(NO_BF16_GFX)


def lacks_fp8(gpu: Gpu) -> bool:
    """True when it is known that there are no fp8 matrix products (before Ada and Hopper, before MI300)."""
    capability = compute_capability(gpu)
    if capability is not None:
        return capability < 89
    arch = gpu.arch or ""
    return arch.startswith("gfx") and not arch.startswith(FP8_GFX)
