"""Ling 3 (modeling_bailing_hybrid.py): Kimi's delta attention in most layers, latent attention with a gate of each head
in the last of each group, DeepSeek V3's experts.
"""

from __future__ import annotations

from memcheck.models.decoder import decoder, gated_mlp, layer_types, linear, pre_norm_block, sparse_types, stack, vector
from memcheck.models.families.deepseek import latent_attention, latent_dimensions, note_mtp_layers
from memcheck.models.families.kimi_linear import delta_mixer, experts
from memcheck.models.module_types import BoundedLingDelta, GatedLatentAttention, LingDelta
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Fp32Params, LatentAttention, Mixer

GROUP, DENSE, GROUPS, CHOSEN_GROUPS = 6, 2, 8, 4
"""The class's defaults: layers of a group, dense layers, groups of experts and of those that are chosen."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: bailing_hybrid``. Its multi-token-prediction module is built on request
    alone.
    """
    config.ignore("rope_theta", "model_max_length", "routed_scaling_factor", "kda_lower_bound")
    config.ignore("mtp_loss_scaling_factor", "pretraining_tp")
    size = latent_dimensions(config)
    hidden = size.hidden
    gate = linear("self_attn.g_proj", size.heads, hidden, "attention", "column")
    attention = latent_attention(config, size, whole_queries=True)
    attention = GatedLatentAttention(*attention._replace(tensors=attention.tensors + gate))
    mixer = _delta(config, hidden, size.heads)
    moe = experts(config, hidden, (GROUPS, CHOSEN_GROUPS))
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), moe.activation)
    group = config.integer("layer_group_size", default=GROUP)
    layer_kinds = layer_types(
        config, size.layers, lambda i: "linear_attention" if (i + 1) % group else "full_attention"
    )
    dense_layers = config.integer("first_k_dense_replace", default=DENSE, minimum=0)
    moe_layers = sparse_types(config, size.layers, dense_layers)

    def build_layer(kind: tuple[str, bool]) -> Block:
        """Build one layer. ``kind``: linear or full attention, and whether it has experts."""
        attention_type, has_experts = kind
        chosen: Mixer | LatentAttention = mixer if attention_type == "linear_attention" else attention
        return pre_norm_block(hidden, chosen, moe if has_experts else mlp)

    note_mtp_layers(config)
    return decoder(
        config,
        size,
        stack(zip(layer_kinds, moe_layers, strict=True), build_layer),
        tied=False,
        rotary_dim=attention.qk_rope_head_dim,
        fp32_params=Fp32Params(always=("conv1d", "dt_bias", "A_log"), of_fp16=()),
    )


def _delta(config: ConfigReader, hidden: int, heads: int) -> Mixer:
    """Build Kimi's delta attention, with one matrix each for the decay's and the output's gate.

    Kimi's own has two low-rank matrices for each gate. ``heads``: of queries, keys and values.
    """
    heads = config.integer("linear_num_heads", default=heads)
    head_dim = config.integer("linear_head_dim", default=config.integer("head_dim", default=128))
    kernel = config.integer("short_conv_kernel_size", default=4)
    kernel = config.integer("linear_conv_kernel_dim", default=kernel)
    width, module = heads * head_dim, "self_attn"
    forget = (
        vector(f"{module}.forget_gate.A_log", heads, "mixer", "column"),
        vector(f"{module}.forget_gate.dt_bias", width, "mixer", "column"),
        *linear(f"{module}.forget_gate.f_proj", width, hidden, "mixer", "column"),
    )
    gate = linear(f"{module}.g_proj", width, hidden, "mixer", "column")
    mixer = delta_mixer(hidden, (heads, head_dim, kernel), forget, gate)
    return (BoundedLingDelta if config.flag("kda_safe_gate", default=True) else LingDelta)(*mixer)
