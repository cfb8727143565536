"""GLM 4.7 Flash (modeling_glm4_moe_lite.py): DeepSeek V3's attention and experts, dense layers by a list."""

from __future__ import annotations

from memcheck.models.families.deepseek import latent_sizes, mtp_layers, sigmoid_experts
from memcheck.models.parts.attention import latent_attention
from memcheck.models.parts.decoder import decoder, pre_norm_block
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.stack import sparse_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """``model_type: glm4_moe_lite``."""
    size = latent_sizes(config)
    attention = latent_attention(config, size, interleaved=config.flag("rope_interleave", default=True))
    moe = sigmoid_experts(config, size.hidden, "n_routed_experts", "n_shared_experts", aliases=("num_local_experts",))
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), moe.activation)._replace(adaptable=False)
    sparse = sparse_types(config, size.layers, config.integer("first_k_dense_replace", default=1, null=1, minimum=0))
    mtp = mtp_layers(config)
    config.ignore("partial_rotary_factor", "moe_layer_freq")

    def make(routed: bool) -> Block:
        return pre_norm_block(size.hidden, attention, moe if routed else mlp)

    return decoder(
        config, size, stack(sparse, make), tied=False, rotary_dim=attention.qk_rope_head_dim, mtp_layers=mtp
    )
