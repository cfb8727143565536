"""Axolotl's keys, and the plan keys for the same things. Read at axolotl 067b021c of July 2026
(``src/axolotl/utils/schemas/*.py``, ``utils/config/__init__.py``, ``core/builders/base.py``).
"""

from __future__ import annotations

from memcheck.configs.key_table import key_table

KEYS = key_table("axolotl")


MODEL = "base_model"
MICRO, STEPS, TOTAL = "micro_batch_size", "gradient_accumulation_steps", "batch_size"
LENGTH = "sequence_len"
DEFAULT_LENGTH = 512


MULTIPLE = 64
"""Tokens of which a row is a multiple, unless ``pad_to_sequence_len`` is false (``core/builders/causal.py``)."""

CCE_PLUGIN = "cut_cross_entropy"
LIGER_FUSED = "liger_fused_linear_cross_entropy"


LIGER_LAYER_NORM = "liger_layer_norm"

QAT, QAT_GROUP = "qat", 32
"""Quantization-aware training, and how many weights share a scale by default (``utils/schemas/quantization.py``)."""
QUANTIZATION = "model_quantization_config"
DEQUANTIZES = "model_quantization_config_kwargs.dequantize"
DEQUANTIZED = "Mxfp4Config"
"""The quantization whose experts are loaded in 16 bits with ``dequantize: true``: where a GPU is too small for a tensor
on its way, it is converted in host memory (transformers 5.23 ``integrations/mxfp4.py``, convert_moe_packed_tensors).
"""
