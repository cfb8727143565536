"""Tensors that torchtitan's models hold in addition to their parameters: rotary caches, one in each layer."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.transformers.states import rotary_width
from memcheck.models.types import Architecture, Attention, LatentAttention


def rotates_complex(mixer: Attention | LatentAttention) -> bool:
    """ComplexRoPE, whose table is complex64 [S, dim / 2], or CosSinRoPE with fp32 [S, 2 dim] (models/common/rope.py).

    ``llama3`` and ``deepseek_v3`` configure the one, ``qwen3`` and ``gpt_oss`` the other (models/*/__init__.py).
    """
    return isinstance(mixer, LatentAttention) or (mixer.query_norm is None and not mixer.sinks)


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """Rows are picked from the layers' caches: a forward makes no table."""
    return 0


def rotary_caches(architecture: Architecture, sequence: int, layers: int, *, adapted: bool) -> int:
    """One buffer per layer: complex64 [S, dim / 2] or fp32 [S, 2 dim]."""
    mixers = [block.mixer for block, _ in architecture.blocks]
    kinds = [rotates_complex(m) for m in mixers if isinstance(m, (Attention, LatentAttention))]
    each = 4 if all(kinds) else 8
    return layers * rounded(sequence * rotary_width(architecture) * each)
