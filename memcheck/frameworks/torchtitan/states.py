"""Tensors that torchtitan's models hold in addition to their parameters: rotary caches, one in each layer."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.transformers.states import rotary_width
from memcheck.models.types import Architecture, Attention, LatentAttention


def rotates_complex(mixer: Attention | LatentAttention) -> bool:
    """Return ComplexRoPE, whose table is complex64 [S, dim / 2], or CosSinRoPE with fp32 [S, 2 dim]
    (models/common/rope.py).

    ``llama3`` and ``deepseek_v3`` configure the one, ``qwen3`` and ``gpt_oss`` the other (models/*/__init__.py).
    """
    return isinstance(mixer, LatentAttention) or (mixer.query_norm is None and not mixer.sinks)


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """Rows are picked from the layers' caches: a forward makes no table."""
    return 0


def rotary_caches(architecture: Architecture, sequence: int, layers: int, *, adapted: bool) -> int:
    """Return the bytes of the rotary tables of ``layers`` layers, each of which has a buffer by itself.

    A table is complex64 [sequence, width / 2], or fp32 cos and sin [sequence, 2 * width]. ``adapted``: not used.
    """
    mixers = [block.mixer for block, _ in architecture.blocks]
    all_complex = all(rotates_complex(mixer) for mixer in mixers if isinstance(mixer, (Attention, LatentAttention)))
    bytes_per_width = 4 if all_complex else 8
    return layers * rounded(sequence * rotary_width(architecture) * bytes_per_width)
