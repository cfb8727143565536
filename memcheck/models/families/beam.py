"""Beam (modeling_beam.py): norms around both halves, sums weighted by depth, a gate after attention, queries of layers
without rotation scaled by position, sigmoid experts with fp32 products.
"""

from __future__ import annotations

from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp, routed
from memcheck.models.parts.matrices import linear
from memcheck.models.parts.sizes import StackDimensions, read_sizes
from memcheck.models.parts.stack import layer_types, sparse_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Moe, ParameterTensor

NORM = "rmsnorm-fp32-weight"
KINDS = ("full_attention", "sliding_attention")
PERIOD, DENSE = 6, 3
"""By default every sixth layer, and the last, has no window; the first three are not routed."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: beam``: a kind of layer whose rotary parameters are null is not turned."""
    size = read_sizes(config, kv_heads="required", head_dim=128)
    h, window = size.hidden, config.window()
    last = size.layers - 1
    types = layer_types(config, size.layers, lambda i: KINDS[bool((i + 1) % PERIOD) and i != last], KINDS)
    still = _still(config)
    attention = _attention(config, size)
    activation = config.activation()
    mlp = gated_mlp(h, config.integer("intermediate_size"), activation)._replace(clamp="wide")
    sparse = sparse_types(config, size.layers, min(DENSE, size.layers))
    moe = _experts(config, h, activation)

    def make(kind: tuple[str, bool]) -> Block:
        turned = kind[0] not in still
        mixer = attention._replace(window=window if kind[0] == "sliding_attention" else None)
        if not turned:
            mixer = mixer._replace(rotary_dim=0, scaled_queries=True, scales_wide=True)
        return Block(
            mixer=mixer,
            mlp=moe if kind[1] else mlp,
            input_norm=rms_norm(h, "input_layernorm", NORM),
            mixer_output_norm=rms_norm(h, "post_attention_layernorm", NORM),
            mlp_norm=rms_norm(h, "pre_feedforward_layernorm", NORM),
            mlp_output_norm=rms_norm(h, "post_feedforward_layernorm", NORM),
            residual_scale=True,
            scaled_sum=True,
        )

    capped = config.raw("final_logit_softcapping") is not None and config.number("final_logit_softcapping", default=0.0)
    found = decoder(
        config,
        size,
        stack(zip(types, sparse, strict=True), make),
        tied=False,
        final_norm=rms_norm(h, "model.norm", NORM),
        final_softcap=bool(capped),
        logits_fp32=bool(capped),
        kept_wide=("mlp.gate.",),
    )
    return found._replace(rotary_tables=len(set(types) - still))


def _still(config: ConfigReader) -> set[str]:
    """Kinds of layers that are not turned: those whose ``rope_parameters`` are null; by default those that see all."""
    stated = config.raw("rope_parameters")
    if stated is None:
        return {"full_attention"}
    if not isinstance(stated, dict):
        config.fail("rope_parameters", "rope_parameters must be a mapping of kinds of layers", "name each kind")
    return {kind for kind in KINDS if kind in stated and stated[kind] is None}


def _attention(config: ConfigReader, size: StackDimensions) -> Attention:
    bias = config.flag("attention_bias")
    found = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        rotary_form="half-fp32",
        query_norm=head_norm(NORM, size.head_dim, "q"),
        key_norm=head_norm(NORM, size.head_dim, "k"),
        dropout=config.dropout("attention_dropout"),
        gate_matrix=True,
        late_gate=True,
        tensors=linear("self_attn.gate_proj", size.heads * size.head_dim, size.hidden, "attention", "column"),
    )
    offset = ParameterTensor("self_attn.gate_bias", (size.heads,), "attention", shard="column")
    return found._replace(tensors=(offset, *found.tensors))  # a module's own parameters stand before its children's


def _experts(config: ConfigReader, hidden: int, activation: str) -> Moe:
    experts = config.integer("num_experts")
    groups = config.integer("n_group", default=8, null=1)
    if experts % groups or experts < 2 * groups:
        config.fail("n_group", f"{experts} experts cannot be cut into {groups} groups of two or more", "use a divisor")
    return routed(
        hidden,
        (experts, config.integer("num_experts_per_tok")),
        config.integer("moe_intermediate_size"),
        activation,
        experts_first=True,
        router="sigmoid",
        router_fp32=True,
        scores_fp32=True,
        correction_bias=True,
        normalised_scores=config.flag("norm_topk_prob", default=True),
        groups=groups,
        chosen_groups=config.integer("topk_group", default=4, null=1),
        clamp="wide",
        scaled_output=True,
    )
