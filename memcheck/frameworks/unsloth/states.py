"""Tensors that unsloth holds in addition to a model's parameters: rotary caches, and a buffer that all layers share.

Sources: unsloth 2026.8 ``models/llama.py`` (LlamaRotaryEmbedding), ``kernels/utils.py`` (fast_dequantize,
``use_global_buffer``); unsloth 2024.8 ``models/llama.py``.
"""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, rounded
from memcheck.frameworks.transformers import states as classes
from memcheck.frameworks.unsloth.layers import FormerStyle
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Architecture, Attention, Mlp

FIRST_POSITIONS = 4 * 8192
"""Rows of a layer's first cos and sin (``current_rope_size``)."""
BLOCK = 64
"""4-bit weights that share a constant, which is restored to fp32."""


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """Return the bytes of cos and sin, and of the buffer into which unsloth's own layers dequantise every weight.

    transformers' classes make cos and sin in each forward. unsloth's have them for every position of the model, in 16
    bits. Until the attention of transformers 4.48 each layer had its own, of 32,768 positions at first, and no buffer.
    """
    if setting.style.runs_transformers_modules:
        return classes.rotary_tables(architecture, setting)
    row_bytes = classes.rotary_width(architecture) * ITEM_BYTES["bf16"]
    model_positions = max(1, architecture.max_position_embeddings)
    if isinstance(setting.style, FormerStyle):
        positions = max(setting.sequence, min(FIRST_POSITIONS, model_positions))
        cos_bytes = sin_bytes = rounded(positions * row_bytes)
        return architecture.num_layers * (cos_bytes + sin_bytes)
    cos_bytes = sin_bytes = rounded(max(setting.sequence, model_positions) * row_bytes)
    return cos_bytes + sin_bytes + _dequantized(architecture, setting)


def rotary_caches(architecture: Architecture, sequence: int, layers: int, *, adapted: bool) -> int:
    """Return 0: what layers hold is in :func:`rotary_tables`."""
    del architecture, sequence, layers, adapted
    return 0


def _dequantized(architecture: Architecture, setting: Setting) -> int:
    """Return the bytes of the buffer for a dequantised matrix, as large as the largest of any layer; 0 without
    quantisation.

    It is in 16 bits; its quantisation constants, one per block, are in fp32.
    """
    adapter = setting.adapter
    if adapter is None or adapter.base_format is None:
        return 0
    largest = 0
    for block, _ in architecture.blocks:
        for component in (block.mixer, block.mlp):
            if isinstance(component, (Attention, Mlp)):
                largest = max([largest, *(tensor.count for tensor in linear_tensors(component.tensors))])
    return rounded(largest * ITEM_BYTES[setting.param_dtype]) + rounded(4 * largest // BLOCK)
