"""What an accelerator's architecture can compute, as far as training needs it."""

from __future__ import annotations

from memcheck.catalog.types import Gpu
from memcheck.edge.text import whole_number

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
