"""What sets the model code of unsloth's releases apart."""

from __future__ import annotations

from memcheck.autograd.context import Style
from memcheck.frameworks.transformers.classes import STYLE


class FormerStyle(Style):
    """unsloth before 2025.1, and any unsloth with transformers before 4.48: every layer has its own cos and sin, and
    every product dequantises its weight into a new tensor.
    """


SOURCE = "unsloth 2026.8 models and kernels, unsloth_zoo 2026.8 (memcheck.frameworks.unsloth)"
OWN = Style(folder="unsloth", layout="batch-first", source=SOURCE, offload_buffers=2)
"""The layers that unsloth writes itself, which are given no mask in training (``LlamaModel_fast_forward``). Inputs of
layers return from the host into two buffers (gradient_checkpointing.py, GPU_BUFFERS, GPU_BUFFERS_B).
"""
FORMER = FormerStyle(folder="unsloth", layout="batch-first", source="unsloth 2024.8 models/llama.py and kernels")
COMPILED = STYLE._replace(folder="unsloth", source=SOURCE, offload_buffers=2)
"""transformers' classes, which unsloth_zoo compiles."""
