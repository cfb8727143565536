"""Hunyuan, dense and routed (modeling_hunyuan_v1_dense.py, modeling_hunyuan_v1_moe.py): norms after the rotation."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    decoder,
    gated_mlp,
    pre_norm_block,
    read_attention,
    read_sizes,
    rms_norm,
    routed,
    with_linear_router,
)
from memcheck.models.module_types import HALF, NORMALISED_SCORES, SharedExperts
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: hunyuan_v1_dense``: Llama's layers with norms of queries and keys after the
    rotation.
    """
    return _dense(config, read_sizes(config))


def _dense(config: ConfigReader, size: StackDimensions) -> Architecture:
    """Build HunYuan's decoder without experts: equal pre-norm layers with a gated MLP."""
    config.ignore("eod_token_id")
    mlp = gated_mlp(size.hidden, config.integer("intermediate_size"), config.activation())
    block = pre_norm_block(size.hidden, _attention(config, size), mlp)
    return decoder(config, size, ((block, size.layers),), tied=False)


def read_moe(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: hunyuan_v1_moe``: an fp32 router that is a linear layer, and a shared
    expert of the same width.
    """
    size = read_sizes(config)
    config.ignore("eod_token_id")
    width = config.integer("intermediate_size")
    moe = routed(
        size.hidden,
        (_same(config, "num_experts", "num_local_experts"), _same(config, "moe_topk", "num_experts_per_tok")),
        width,
        config.activation(),
        SharedExperts(width, gate=False, runs_first=True),
        names=("gate.wg", "shared_mlp"),
        routing=NORMALISED_SCORES._replace(input_fp32=True, scores_fp32=True),
    )
    block = pre_norm_block(size.hidden, _attention(config, size), with_linear_router(moe))
    return decoder(config, size, ((block, size.layers),), tied=False)


def _same(config: ConfigReader, key: str, alias: str) -> int:
    """Return a number that is stated once, or in a list of one number per layer, which must all be the same.

    ``alias``: the key under which older configurations have it.
    """
    stated_key = next((name for name in (key, alias) if isinstance(config.raw(name), (list, tuple))), "")
    if not stated_key:
        return config.integer(key, alias)
    stated = config.integers(stated_key) or ()
    if len(set(stated)) != 1:
        config.fail(stated_key, f"{stated_key} differs between layers", "every layer must have the same number")
    return stated[0]


def _attention(config: ConfigReader, size: StackDimensions) -> Attention:
    """Return grouped attention with norms of queries and keys, which follow the rotation."""
    return read_attention(
        config,
        size,
        query_norm=rms_norm(size.head_dim, "self_attn.query_layernorm"),
        key_norm=rms_norm(size.head_dim, "self_attn.key_layernorm"),
        rotation=HALF._replace(before_norms=True),
    )
