"""Solar Open (modeling_solar_open.py): Llama's attention, GLM 4.5's experts in every layer."""

from __future__ import annotations

from memcheck.models.decoder import decoder, grouped_attention, pre_norm_block, read_sizes
from memcheck.models.families.deepseek import sigmoid_experts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: solar_open``. The output matrix has no bias whatever ``attention_bias``
    says.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    config.ignore("intermediate_size", "first_k_dense_replace", "partial_rotary_factor", "use_qk_norm")
    attention = grouped_attention(
        size, qkv_bias=config.flag("attention_bias"), dropout=config.dropout("attention_dropout")
    )
    moe = sigmoid_experts(config, size.hidden, "n_routed_experts", "n_shared_experts", aliases=("num_local_experts",))
    return decoder(config, size, ((pre_norm_block(size.hidden, attention, moe), size.layers),), tied=False)
