"""The packages whose kernels recurrent layers run in."""

from __future__ import annotations

from memcheck.models.types import Architecture, Mixer, Rough

KERNELS = {
    **dict.fromkeys(("mamba1", "mamba1-heads", "mamba2"), "mamba-ssm"),
    "gated-delta-net": "flash-linear-attention",
    "short-convolution": "causal-conv1d",
}
"""Packages whose fused kernels the estimate of recurrent layers assumes. transformers falls back to code of its own
without them (``use_kernel_func_from_hub_with_fallback``), whose traced steps took 2.1 to 2.5 times as much.
"""


def fused_packages(architecture: Architecture | Rough) -> list[str]:
    """Packages whose kernels the estimate of the model's layers assumes."""
    if not isinstance(architecture, Architecture):
        return []
    mixers = (mixer for block, _ in architecture.blocks for mixer in (block.mixer, block.beside))
    kinds = {mixer.kind for mixer in mixers if isinstance(mixer, Mixer)}
    return [package for kind, package in KERNELS.items() if kind in kinds]
