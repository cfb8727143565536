"""Llama, and what shares its block: Yi, SmolLM, TinyLlama, Falcon 3, DeepSeek LLM (modeling_llama.py)."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, pre_norm_block, read_attention, read_sizes
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: llama``."""
    size = read_sizes(config)
    attention = read_attention(config, size)
    mlp = gated_mlp(size.hidden, intermediate_size(config), config.activation(), bias=config.flag("mlp_bias"))
    block = pre_norm_block(size.hidden, attention, mlp)
    return decoder(config, size, ((block, size.layers),), tied=False)


def intermediate_size(config: ConfigReader) -> int:
    """Read ``intermediate_size``; if it is absent, half of ``ffn2``, the rows of torchtitan's fused gate and up
    (``w13``).
    """
    fused = config.optional_integer("ffn2")
    if fused is None or config.has("intermediate_size"):
        width = config.integer("intermediate_size")
        if fused is not None and fused != 2 * width:
            config.fail("ffn2", f"ffn2 = {fused} is not twice intermediate_size = {width}")
        return width
    if fused % 2:
        config.fail("ffn2", f"ffn2 = {fused} is odd; it holds the gate and the up matrix")
    return fused // 2
