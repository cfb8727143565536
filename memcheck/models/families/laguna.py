"""Laguna (modeling_laguna.py): a gate of each head or element, heads by layer, sigmoid experts and a shared one."""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, pre_norm_block
from memcheck.models.parts.feed_forward import Shared, gated_mlp, routed, with_correction
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.sizes import StackDimensions, check_groups, read_sizes
from memcheck.models.parts.stack import layer_types, sparse_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block

SHARES = {"full_attention": 0.5, "sliding_attention": 1.0}


def read(config: ConfigReader) -> Architecture:
    """``model_type: laguna``."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    h, window, activation = size.hidden, config.window(), config.activation()
    types = layer_types(config, size.layers, lambda i: "full_attention")
    heads = config.integers("num_attention_heads_per_layer") or (size.heads,) * size.layers
    if len(heads) != size.layers:
        config.fail("num_attention_heads_per_layer", f"{len(heads)} layers are named, the model has {size.layers}")
    for number in heads:
        check_groups(config, number, size.kv_heads, "num_attention_heads_per_layer")
    turned = {kind: int(size.head_dim * rotary_share(config, kind, SHARES[kind])) for kind in sorted(set(types))}
    experts = config.integer("num_experts", "num_local_experts")
    config.ignore("moe_routed_scaling_factor", "router_aux_loss_coef", "qkv_bias", "norm_topk_prob")
    if config.flag("moe_apply_router_weight_on_input"):
        config.fail("moe_apply_router_weight_on_input", "transformers does not support it", "write false")
    moe = routed(
        h,
        (experts, config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        activation,
        Shared(config.integer("shared_expert_intermediate_size")),
        experts_first=True,
        router="sigmoid-narrow",
        shared_first=True,
        scaled_output=True,
        capped_scores=config.number("moe_router_logit_softcapping", default=0.0) > 0.0,
    )
    moe = with_correction(moe, "mlp.gate.e_score_correction_bias", (experts,))
    mlp = gated_mlp(h, config.integer("intermediate_size"), activation)
    form = config.raw("gating")
    each = form in (None, True, "per-head")
    dropout, bias = config.dropout("attention_dropout"), config.flag("attention_bias")

    def make(kind: tuple[str, int, bool]) -> Block:
        attention = _attention(size._replace(heads=kind[1]), turned[kind[0]], bias=bias, each=each)
        attention = attention._replace(window=window if kind[0] == "sliding_attention" else None, dropout=dropout)
        return pre_norm_block(h, attention, moe if kind[2] else mlp)

    kinds = zip(types, heads, sparse_types(config, size.layers, 1), strict=True)
    return decoder(
        config, size, stack(kinds, make), tied=False, rotary_dims=tuple(turned.values()), rotary_tables=len(turned)
    )


def _attention(size: StackDimensions, turned: int, *, bias: bool, each: bool) -> Attention:
    width = size.heads if each else size.heads * size.head_dim
    return grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=turned,
        query_norm=head_norm("rmsnorm", size.head_dim, "q"),
        key_norm=head_norm("rmsnorm", size.head_dim, "k"),
        gate_matrix=True,
        soft_gate=True,
        tensors=linear("self_attn.g_proj", width, size.hidden, "attention", "column"),
    )


def rotary_share(config: ConfigReader, kind: str, default: float) -> float:
    """``partial_rotary_factor`` of one kind of layers, in ``rope_parameters``."""
    every = config.raw("rope_parameters")
    own = every.get(kind) if isinstance(every, dict) else None
    share = own.get("partial_rotary_factor", default) if isinstance(own, dict) else default
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0.0 <= share <= 1.0:
        config.fail("rope_parameters", f"partial_rotary_factor of {kind} layers is not a share of 1")
    return float(share)
