"""Replay one layer of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcheck.autograd.context import Adapter, Setting
from memcheck.autograd.curve import Curve, replay
from memcheck.families.registry import read_architecture
from memcheck.frameworks.registry import FRAMEWORKS, layers_of
from memcheck.models.types import Block

TOKENS = 1024
"""A multiple of the allocator's block for every tensor that counts, so that bytes per token are whole."""
AUTOCAST = {"param_dtype": "fp32", "compute_dtype": "fp32", "autocast_dtype": "bf16"}
FP32 = {"param_dtype": "fp32", "compute_dtype": "fp32"}
TRANSFORMERS, TITAN = (FRAMEWORKS[name].style for name in ("huggingface", "torchtitan"))
TORCHTITAN = {"style": TITAN, "attention": "flash"}


def block_of(config: Mapping[str, Any], layer: int = 0) -> Block:
    """The block of one layer."""
    return read_architecture(config).layers()[layer]


def curve_of(
    config: Mapping[str, Any],
    layer: int = 0,
    *,
    recompute: str = "none",
    lora: int = 0,
    tokens: int = TOKENS,
    **setting: Any,
) -> Curve:
    """The layer's curve. ``lora``: rank of fp32 adapters on all linear layers; ``setting``: fields of Setting."""
    architecture = read_architecture(config)
    block = architecture.layers()[layer]
    if lora:
        setting = {"trained": False, "adapter": Adapter(lora, "all-linear", "fp32"), **setting}
    setting = {"style": TRANSFORMERS, "batch": 1, "sequence": tokens, **setting}
    s = Setting(hidden=architecture.hidden_size, **setting)
    rows = s.batch * s.sequence
    if s.sequence_parallel and s.tensor_parallel > 1:
        rows //= s.tensor_parallel
    forward, checkpoint = layers_of(s.style).recomputing(block, recompute)
    return replay(forward, s, (rows, s.hidden), s.param_dtype, recompute=checkpoint)


def saved_per_token(config: Mapping[str, Any], layer: int = 0, **how: Any) -> float:
    """Bytes per token that the layer keeps from its forward to its backward."""
    tokens = how.get("tokens", TOKENS)
    return curve_of(config, layer, **how).saved_bytes / (how.get("batch", 1) * how.get("sequence", tokens))
