"""Phi 3.5 MoE (modeling_phimoe.py): LayerNorm, a bias on the head, a sparsemixer router."""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    layer_norm,
    pre_norm_block,
    read_attention,
    read_sizes,
    routed,
    with_linear_router,
)
from memcheck.models.module_types import NORMALISED_SCORES
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Moe


class NoisyMoe(Moe):
    """Experts and a router whose input is multiplied by random numbers (``input_jitter_noise``)."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: phimoe``.

    LayerNorm, grouped attention with a window, and experts with a sparsemixer router in every layer.
    """
    size = read_sizes(config, kv_heads="required")
    config.ignore("hidden_dropout")
    attention = read_attention(
        config,
        size,
        window=config.window(),
    )
    moe = routed(
        size.hidden,
        (config.integer("num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("intermediate_size"),
        config.activation(),
        names=("router", "shared_experts"),
        router="sparsemixer",
        routing=NORMALISED_SCORES._replace(normalised=False),
    )
    moe = NoisyMoe(*moe) if config.number("input_jitter_noise", default=0.0) > 0 else moe
    block = pre_norm_block(size.hidden, attention, with_linear_router(moe), kind="layernorm", bias=True)
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=False,
        final_norm=layer_norm(size.hidden, "model.norm"),
        head_bias=config.flag("lm_head_bias"),
    )
