"""Arcee's Trinity (modeling_afmoe.py): gated attention whose windowed layers alone rotate, sigmoid experts."""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    head_norms,
    layer_types,
    linear,
    read_attention,
    read_sizes,
    rms_norm,
    routed,
    stack,
    with_correction,
    with_linear_router,
)
from memcheck.models.module_types import NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Fp32Params, Moe

NORM = "rmsnorm-fp32-weight"


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: afmoe`` (Arcee Trinity): gated attention, sigmoid routing, and one dense
    MLP layer before the MoE layers by default.

    Only sliding-window layers rotate queries and keys. Full-attention layers come every ``global_attn_every_n_layers``.
    """
    size = read_sizes(config, head_dim=128)
    hidden, window = size.hidden, config.window()
    period = config.integer("global_attn_every_n_layers", default=4, null=4)
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if (i + 1) % period else "full_attention"
    )
    attention = read_attention(
        config,
        size,
        **head_norms(NORM, size.head_dim),
        gate_matrix="adaptable",
        tensors=linear("self_attn.gate_proj", size.heads * size.head_dim, hidden, "attention", "column"),
    )
    moe = _experts(config, hidden)
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), moe.activation)
    dense_layers = config.integer("num_dense_layers", default=1, minimum=0)

    def build_layer(kind: tuple[str, bool]) -> Block:
        """Build one layer. ``kind``: its attention type, and whether its feed-forward is the MoE."""
        attention_type, has_experts = kind
        sliding = attention_type == "sliding_attention"
        return Block(
            mixer=attention._replace(window=window) if sliding else attention._replace(rotary_dim=0),
            mlp=moe if has_experts else mlp,
            input_norm=rms_norm(hidden, "input_layernorm", NORM),
            mlp_norm=rms_norm(hidden, "pre_mlp_layernorm", NORM),
            mixer_output_norm=rms_norm(hidden, "post_attention_layernorm", NORM),
            mlp_output_norm=rms_norm(hidden, "post_mlp_layernorm", NORM),
        )

    return decoder(
        config,
        size,
        stack(((t, i >= dense_layers) for i, t in enumerate(attention_types)), build_layer),
        tied=False,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        mask_windows=(None, window),
        embedding_scale="model" if config.flag("mup_enabled") else "",
        fp32_params=Fp32Params(always=(), of_fp16=("norm", "expert_bias")),
    )


def _experts(config: ConfigReader, hidden: int) -> Moe:
    """Build routed experts with a linear router and a correction bias, and shared experts, which the class makes
    first.
    """
    width, experts = config.integer("moe_intermediate_size"), config.integer("num_experts")
    config.ignore("route_scale")
    moe = routed(
        hidden,
        (experts, config.integer("num_experts_per_tok")),
        width,
        config.activation(),
        SharedExperts(config.integer("num_shared_experts", minimum=0) * width, gate=False, runs_first=True),
        names=("router.gate", "shared_experts"),
        router="sigmoid",
        routing=NORMALISED_SCORES._replace(scores_fp32=True),
    )
    router, experts_up, experts_down, *shared_experts = moe.tensors
    moe = moe._replace(tensors=(router, *shared_experts, experts_up, experts_down))
    return with_correction(with_linear_router(moe), "mlp.expert_bias", (experts,))
