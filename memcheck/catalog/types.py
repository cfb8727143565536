"""Records of the catalogs."""

from __future__ import annotations

from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
    """Bandwidth of NVLink per GPU in GB/s, the sum of both directions, as in datasheets."""
    gpus_per_node: int | None = None
    source: str = ""
    from_catalog: bool = True
    """False when the plan gave the figures itself."""
    fp32_tflops: float | None = None
    """TFLOPS of fp32 outside the tensor cores, which torch uses unless TF32 is allowed."""
    multiprocessors: int | None = None
    """Streaming multiprocessors (NVIDIA) or compute units (AMD)."""
    bf16_efficiency: float | None = None
    """The fastest matrix product that was measured, as a share of ``bf16_tflops``."""
    fp8_efficiency: float | None = None
    nvlink_gpus: int | None = None
    """GPUs that NVLink joins where that is not the node: pairs under a bridge, whole racks."""
    pcie_gbs: float | None = None
    """The link to the host, one direction."""
    network_gbs: float | None = None
    """The network between nodes, per GPU and direction, in the vendor's reference system."""
    peer_access: bool = True
    """Whether GPUs of a node are sure to reach each other's memory. GeForce cards without a bridge between them do not:
    NCCL's buffers are then shared memory of the host (``src/transport/shm.cc``, ``shmRecvSetup``).
    """
    context_read: bool = False
    """Whether the driver's context was read on this very GPU, and not on one of its architecture."""


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
    read_as: str = ""
    """Why this record was found for a name that is not in the catalog; empty for one that is."""
