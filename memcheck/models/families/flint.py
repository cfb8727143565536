"""Flint (modeling_flint.py): sinks on fp32 scores, windowed layers alone rotate, sigmoid experts without bias."""

from __future__ import annotations

from memcheck.models.families.qwen_moe import sparse_layers
from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, pre_norm_block, rms_norm
from memcheck.models.parts.feed_forward import Shared, gated_mlp, routed
from memcheck.models.parts.matrices import vector
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block

NORM = "rmsnorm-fp32-weight"


def read(config: ConfigReader) -> Architecture:
    """``model_type: flint``."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    h, window, last = size.hidden, config.window(), size.layers - 1
    types = layer_types(
        config, size.layers, lambda i: "full_attention" if i < 2 or i % 4 == 1 or i == last else "sliding_attention"
    )
    bias, activation = config.flag("attention_bias"), config.activation()
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        query_norm=head_norm(NORM, size.head_dim, "q"),
        key_norm=head_norm(NORM, size.head_dim, "k"),
        sdpa=False,
        sinks=True,
        wide_sinks=True,
        dropout=config.dropout("attention_dropout"),
        tensors=(vector("self_attn.sinks", size.heads, "attention", "column"),),
    )
    moe = routed(
        h,
        (config.integer("num_experts"), config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        activation,
        Shared(config.integer("shared_expert_intermediate_size"), "shared_expert"),
        experts_first=True,
        router="sigmoid-best",
        router_fp32=True,
        router_apart=True,
        normalised_scores=config.flag("norm_topk_prob", default=True),
    )
    mlp = gated_mlp(h, config.integer("intermediate_size"), activation)

    def make(kind: tuple[str, bool]) -> Block:
        sliding = kind[0] == "sliding_attention"
        mixer = attention._replace(window=window) if sliding else attention._replace(rotary_dim=0)
        return pre_norm_block(h, mixer, moe if kind[1] else mlp, kind=NORM)

    return decoder(
        config,
        size,
        stack(zip(types, sparse_layers(config, size.layers), strict=True), make),
        tied=False,
        final_norm=rms_norm(h, "model.norm", NORM),
        mask_windows=(None, window),
        kept_wide=("sinks", "mlp.gate."),
    )
