"""Kolibri 1 (modeling_kolibri1.py): norms around both halves, windowed layers that alone rotate, experts everywhere."""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, pre_norm_block, rms_norm
from memcheck.models.parts.feed_forward import Shared, routed
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block


def read(config: ConfigReader) -> Architecture:
    """``model_type: kolibri1``."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    h, window = size.hidden, config.window()
    types = layer_types(config, size.layers, lambda i: "sliding_attention" if (i + 1) % 5 else "full_attention")
    attention = grouped_attention(
        size,
        query_norm=head_norm("rmsnorm", size.head_dim, "q"),
        key_norm=head_norm("rmsnorm", size.head_dim, "k"),
        dropout=config.dropout("attention_dropout"),
    )
    moe = routed(
        h,
        (config.integer("num_experts", "num_local_experts"), config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        config.activation(),
        Shared(config.integer("shared_expert_intermediate_size")),
        experts_first=True,
        router="sigmoid-chosen",
        correction_bias=True,
        router_fp32=True,
        scores_fp32=True,
        normalised_scores=config.flag("norm_topk_prob"),
    )

    def make(kind: str) -> Block:
        sliding = kind == "sliding_attention"
        turned = attention._replace(window=window) if sliding else attention._replace(rotary_dim=0)
        return pre_norm_block(h, turned if window is not None else attention, moe)._replace(
            mixer_output_norm=rms_norm(h, "post_self_attn_layernorm"),
            mlp_output_norm=rms_norm(h, "post_mlp_layernorm"),
        )

    masks = (None, window) if "sliding_attention" in types else (None,)
    return decoder(config, size, stack(types, make), tied=False, mask_windows=masks)
