"""How long nanotron's steps take: as Megatron's on FlashAttention, with norms of one kernel and SwiGLU in pieces."""

from __future__ import annotations

from memcheck.frameworks.megatron.stack import TIMING as MEGATRON

TIMING = MEGATRON._replace(fuses_elementwise=lambda _job: False)
