"""GLM 4.7 Flash and A.X K1 (modeling_glm4_moe_lite.py, modeling_axk1.py): DeepSeek V3's attention and
experts, dense layers by a list.
"""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, pre_norm_block, rms_norm, sparse_types, stack
from memcheck.models.families.deepseek import latent_attention, latent_dimensions, note_mtp_layers, sigmoid_experts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: glm4_moe_lite``."""
    return _read(config, norm_after_experts=False)


def read_axk1(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: axk1``: A.X K1, with a norm after the experts."""
    config.ignore("ep_size", "aux_loss_alpha", "topk_method", "scoring_func")
    if config.raw("moe_layer_freq") not in (None, 1):
        config.fail("moe_layer_freq", "memcheck reads mlp_layer_types", "state which layers are sparse there")
    return _read(config, norm_after_experts=True)


def _read(config: ConfigReader, *, norm_after_experts: bool) -> Architecture:
    """Read a configuration with latent attention and DeepSeek V3's experts.

    ``norm_after_experts``: an RMSNorm follows the experts (A.X K1).
    """
    size = latent_dimensions(config)
    attention = latent_attention(config, size, interleaved=config.flag("rope_interleave", default=True))
    moe = sigmoid_experts(config, size.hidden, "n_routed_experts", "n_shared_experts", aliases=("num_local_experts",))
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), moe.activation)
    moe_layers = sparse_types(
        config, size.layers, config.integer("first_k_dense_replace", default=1, null=1, minimum=0)
    )
    note_mtp_layers(config)
    config.ignore("partial_rotary_factor", "moe_layer_freq")

    def build_layer(routed: bool) -> Block:
        """Build one layer. ``routed``: whether it has experts."""
        block = pre_norm_block(size.hidden, attention, moe if routed else mlp)
        output_norm = rms_norm(size.hidden, "mlp.post_mlp_layernorm") if norm_after_experts and routed else None
        return block._replace(mlp_output_norm=output_norm)

    return decoder(config, size, stack(moe_layers, build_layer), tied=False, rotary_dim=attention.qk_rope_head_dim)
