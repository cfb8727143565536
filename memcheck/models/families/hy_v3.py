"""Hy 3 (modeling_hy_v3.py): query and key norms, sigmoid experts whose output joins the shared one's in fp32."""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    head_norms,
    pre_norm_block,
    read_attention,
    read_sizes,
    routed,
    sparse_types,
    stack,
)
from memcheck.models.module_types import NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Moe


class WideSumMoe(Moe):
    """Experts whose routed and shared outputs are added in fp32 and cast back."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: hy_v3``.

    Llama's layers with norms of queries and keys, and sigmoid-routed experts with a shared one.
    """
    size = read_sizes(config, kv_heads="required", head_dim=128)
    hidden, width = size.hidden, config.integer("moe_intermediate_size")
    attention = read_attention(
        config,
        size,
        **head_norms("rmsnorm", size.head_dim),
    )
    config.ignore("router_scaling_factor")
    config.refuse("mlp_bias", "memcheck has no model of this family's networks with biases", "write mlp_bias: false")
    activation = config.activation()
    moe = routed(
        hidden,
        (config.integer("num_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        width,
        activation,
        SharedExperts(config.integer("num_shared_experts", default=1, null=1) * width, gate=False, runs_first=False),
        router="sigmoid",
        routing=NORMALISED_SCORES._replace(input_fp32=True, scores_fp32=True),
    )
    moe = WideSumMoe(*moe) if config.flag("enable_moe_fp32_combine", default=True) else moe
    mlp = gated_mlp(hidden, config.integer("intermediate_size"), activation)

    def build_layer(sparse: bool) -> Block:
        return pre_norm_block(hidden, attention, moe if sparse else mlp)

    return decoder(config, size, stack(sparse_types(config, size.layers, 1), build_layer), tied=False)
