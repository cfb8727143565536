"""Mistral Small 4 (modeling_mistral4.py): latent attention with scaled queries, a softmax router with groups."""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, pre_norm_block, stack
from memcheck.models.families.deepseek import latent_attention, latent_dimensions, sigmoid_experts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mistral4``.

    Latent attention with scaled queries, and experts with a softmax router after the dense layers.
    """
    size = latent_dimensions(config)
    attention = latent_attention(config, size, interleaved=config.flag("rope_interleave", default=True))
    attention = attention._replace(query_scale="position")
    moe = sigmoid_experts(config, size.hidden, "n_routed_experts", "n_shared_experts", aliases=("num_local_experts",))
    moe = moe._replace(
        router="softmax-groups",
        routing=moe.routing._replace(input_fp32=False, scores_fp32=False),
    )
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), moe.activation)
    dense_layers = config.integer("first_k_dense_replace", default=0, null=0, minimum=0)

    def build_layer(routed: bool) -> Block:
        return pre_norm_block(size.hidden, attention, moe if routed else mlp)

    blocks = stack((i >= dense_layers for i in range(size.layers)), build_layer)
    return decoder(config, size, blocks, tied=False, rotary_dim=attention.qk_rope_head_dim)
