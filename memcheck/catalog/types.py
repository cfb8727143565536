"""Records of the catalogs."""

from __future__ import annotations

from typing import Any

from memcheck.record import Record


class Gpu(Record):
    """One accelerator. Rates are dense; None = not known."""

    name: str
    """Canonical plan name: ``h100-80gb``."""
    memory_bytes: int
    """What torch can reach at best: the lowest total seen on real machines (never the number on the box)."""
    arch: str | None = None
    """``sm_90``, ``gfx942``, ..."""
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    hbm_gbs: float | None = None
    nvlink_gbs: float | None = None
    gpus_per_node: int | None = None
    source: str = ""
    from_catalog: bool = True
    """False when the plan gave the figures itself."""


class Model(Record):
    """One model of the catalog."""

    name: str
    """Canonical short name: ``llama-3.1-8b``."""
    id: str
    """Hugging Face id."""
    config: dict[str, Any]
    """Configuration in Hugging Face's key names, ``model_type`` included."""
    parameters: int
    """Exact count of the instantiated model (a test compares it with the count from dimensions)."""
    source: str = ""
    note: str = ""
