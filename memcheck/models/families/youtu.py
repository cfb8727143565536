"""Youtu-LLM (modeling_youtu.py): Llama with DeepSeek V3's latent attention."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, pre_norm_block
from memcheck.models.families.deepseek import latent_attention, latent_dimensions
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: youtu``: Llama's MLP with DeepSeek V3's latent attention."""
    size = latent_dimensions(config)
    config.ignore("embedding_initializer_range")
    attention = latent_attention(config, size, interleaved=config.flag("rope_interleave", default=True))
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation())
    block = pre_norm_block(size.hidden, attention, mlp)
    return decoder(config, size, ((block, size.layers),), tied=True, rotary_dim=attention.qk_rope_head_dim)
