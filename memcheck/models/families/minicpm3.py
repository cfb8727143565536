"""MiniCPM 3 (modeling_minicpm3.py): latent attention, and constants on embedding, residual stream and head."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, pre_norm_block
from memcheck.models.families.deepseek import latent_attention, latent_dimensions
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: minicpm3``. ``v_head_dim`` is hidden size / heads unless stated."""
    size = latent_dimensions(config)
    config.ignore("scale_emb", "scale_depth", "dim_model_base", "mlp_bias")
    attention = latent_attention(config, size, interleaved=False, v_head_dim=size.hidden // size.heads)
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation(), bias=config.flag("mlp_bias"))
    block = pre_norm_block(size.hidden, attention, mlp)._replace(branch_scale="constant")
    return decoder(
        config, size, ((block, size.layers),), tied=True, rotary_dim=attention.qk_rope_head_dim,
        embedding_scale="module", head_input_scale=True,
    )  # fmt: skip
