"""What a change costs in step time: a model, not a measurement. Relative: 0.33 = a third slower."""

from __future__ import annotations

FULL_RECOMPUTE = 0.33
"""One more forward pass beside forward (1) and backward (2). Korthikanti et al. 2022 measured 30 to 40 %."""

SELECTIVE_RECOMPUTE = 0.04
"""Megatron's core attention: Korthikanti et al. 2022 measured 7 %, and 4 % or less with sequence parallelism."""

PER_OP_RECOMPUTE = 0.15
"""torchtitan's per-op mode recomputes every second matrix product: about half of the full recompute."""

ZERO = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.05}
"""Rajbhandari et al. 2020, section 7: stages 1 and 2 exchange as much as data parallelism does, stage 3 half as much
again, most of it behind the computation."""

ZERO_ACROSS_NODES = 0.10
"""Added at stage 3 when the sharding group leaves the node."""

RESHARD = 0.03
"""Gathering the parameters a second time, for backward."""

TENSOR_PER_DOUBLING = 0.05
"""Four exchanges of activations per layer over NVLink. Shoeybi et al. 2019 lost 23 % from 1 to 8 GPUs on V100."""

TENSOR_WITHOUT_NVLINK = 0.40
"""The same over PCIe."""

CONTEXT_PER_DOUBLING = 0.03
"""Keys and values go round the ring behind the attention of long sequences."""

MICRO_BATCH_PER_HALVING = 0.02
"""Matrix products of half the rows. Below SMALL_TOKENS they no longer fill the GPU."""

SMALL_TOKENS = 4096
MICRO_BATCH_SMALL_PER_HALVING = 0.15

CHUNKED_LOSS = 0.02
"""The head's matrix product in pieces, once more under checkpoint."""

FUSED_LINEAR_LOSS = 0.0
"""Liger's fused linear cross-entropy: Hsu et al. 2024 report no loss of throughput."""

EIGHT_BIT_OPTIMIZER = 0.01
"""Dettmers et al. 2021: as fast as the fused 32-bit kernels."""

OPTIMIZER_OFFLOAD = 0.50
"""Gradients out and parameters in over PCIe, the update on the host; between the extremes of Ren et al. 2021."""

PARAMETER_OFFLOAD = 1.00
"""The whole shard over PCIe for every pass."""

QUANTISED_BASE = 0.30
"""Dequantising every weight in forward and backward; Dettmers et al. 2023."""


def bubble(stages: int, micro_batches: int) -> float:
    """Idle share of a 1F1B pipeline: ``(p - 1) / (m + p - 1)`` (Narayanan et al. 2021, section 2.2)."""
    return (stages - 1) / (micro_batches + stages - 1)
