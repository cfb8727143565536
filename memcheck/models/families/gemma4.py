"""Gemma 4, text (modeling_gemma4.py): wide heads in full layers, per-layer embeddings, shared keys, experts."""

from __future__ import annotations

from memcheck.models.decoder import (
    StackDimensions,
    check_groups,
    decoder,
    gated_mlp,
    gated_tensors,
    grouped_attention,
    head_norm,
    layer_types,
    linear,
    norm_tensors,
    read_sizes,
    rms_norm,
    stack,
    stacked_experts,
    vector,
)
from memcheck.models.families.gemma import TANH_GELU, sandwich_block
from memcheck.models.module_types import (
    NORMALISED_SCORES,
    Gemma4Attention,
    KeysAsValuesAttention,
    ReusingAttention,
    SharedExperts,
    StreamMoe,
)
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Gemma4Block, Mlp, Moe, ParameterTensor, PerLayer
from memcheck.record import Record

NORM = "rmsnorm-fp32-weight"


class Kind(Record):
    """What sets a layer apart: hashable."""

    full: bool
    """Full attention; else a sliding window."""
    reuses: bool
    """The layer attends to keys and values of an earlier layer."""
    stores: bool = False
    """Later layers reuse the layer's keys and values."""


def read_unified(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gemma4_unified_text``: neither per-layer embeddings nor experts."""
    for key in ("hidden_size_per_layer_input", "enable_moe_block"):
        if config.raw(key):
            config.fail(key, f"the model has no {key}", f"remove {key}")
    return _read(config, per_layer_width=0)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gemma4_text``."""
    return _read(config, per_layer_width=config.integer("hidden_size_per_layer_input", default=256, null=0, minimum=0))


def _read(config: ConfigReader, *, per_layer_width: int) -> Architecture:
    """Read Gemma 4's text model. ``per_layer_width``: elements of a layer's own embedding of a token; 0 for none."""
    size = read_sizes(config, kv_heads="required", head_dim=256)
    hidden, window = size.hidden, config.window()
    config.ignore("hidden_act")
    if config.text("use_bidirectional_attention", default="vision") != "vision":
        config.fail("use_bidirectional_attention", "text that sees what follows it has no memory model", "vision has")
    kinds = _layer_kinds(config, size.layers)
    width, double_wide_mlp = config.integer("intermediate_size"), config.flag("use_double_wide_mlp")
    activation = config.activation("hidden_activation", default=TANH_GELU)
    moe = _moe(config, hidden, width, activation) if config.flag("enable_moe_block") else None
    if moe is None:
        config.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
    full_attention_size = _full_attention_dimensions(config, size)
    keys_are_values = config.flag("attention_k_eq_v")
    per_layer_vocab = config.integer("vocab_size_per_layer_input", default=size.vocab, null=size.vocab)
    per_layer = None
    if per_layer_width:
        per_layer = PerLayer(width=per_layer_width, total=size.layers * per_layer_width, activation=activation)
    bias, dropout = config.flag("attention_bias"), config.dropout("attention_dropout")

    def build_layer(kind: Kind) -> Block:
        """Build one layer. ``kind``: whether its attention is full, and whether it reuses or stores keys and values."""
        attention = gemma4_attention(
            full_attention_size if kind.full else size,
            bias=bias,
            keys_are_values=keys_are_values and kind.full,
            reuses=kind.reuses,
        )
        mlp_width = 2 * width if double_wide_mlp and kind.reuses else width
        mlp: Mlp | Moe = gated_mlp(hidden, mlp_width, activation) if moe is None else moe
        attention = attention._replace(window=None if kind.full else window, dropout=dropout, stores_keys=kind.stores)
        block = sandwich_block(hidden, attention, mlp, NORM)
        return Gemma4Block(*block)._replace(
            extra_tensors=per_layer_tensors(hidden, per_layer_width), extension=per_layer
        )

    rotary_dims = [full_attention_size.head_dim if kind.full else size.head_dim for kind in kinds]
    return decoder(
        config,
        size,
        stack(kinds, build_layer),
        tied=True,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        embedding_scale="module",
        final_softcap=config.raw("final_logit_softcapping") is not None,
        rotary_tables=tuple(dict.fromkeys(rotary_dims)) or 1,
        mask_windows=(None, window),
        extra_tensors=per_layer_embedding_tensors(
            hidden, per_layer_vocab, size.layers * per_layer_width, per_layer_width
        ),
    )


def _layer_kinds(config: ConfigReader, layers: int) -> tuple[Kind, ...]:
    """Read the kind of every layer: every sixth has full attention by default, and the last ones may reuse keys."""
    types = layer_types(config, layers, lambda i: "sliding_attention" if (i + 1) % 6 else "full_attention")
    kv_shared_layers = config.integer("num_kv_shared_layers", default=0, null=0, minimum=0)
    modes = kv_sharing_modes(types, kv_shared_layers)
    return tuple(
        Kind(full=attention_type == "full_attention", reuses=mode == "reuse", stores=mode == "store")
        for attention_type, mode in zip(types, modes, strict=True)
    )


def kv_sharing_modes(attention_types: tuple[str, ...], kv_shared_layers: int) -> tuple[str, ...]:
    """Say for each layer where its keys and values come from: ``reuse``, ``store`` or ``own``.

    The last ``kv_shared_layers`` layers reuse those of an earlier layer with the same attention type: the last one
    before them, which stores them. All others only use their own. ``attention_types``: one per layer.
    """
    first_reusing = len(attention_types) - kv_shared_layers
    modes = []
    for i, attention_type in enumerate(attention_types):
        if i >= first_reusing:
            modes.append("reuse")
        elif kv_shared_layers and attention_type not in attention_types[i + 1 : first_reusing]:
            modes.append("store")
        else:
            modes.append("own")
    return tuple(modes)


def _full_attention_dimensions(config: ConfigReader, size: StackDimensions) -> StackDimensions:
    """Return the dimensions of full-attention layers.

    Their heads are wider than those of windowed layers; they have fewer key-value heads if keys are also the values.
    """
    head_dim = config.integer("global_head_dim", default=512, null=512)
    kv_heads = config.integer("num_global_key_value_heads", default=size.kv_heads, null=size.kv_heads)
    per_layer_config = config.raw("per_layer_config")
    if isinstance(per_layer_config, dict) and per_layer_config:  # as transformers 5 writes both
        layer_config = next(iter(per_layer_config.values()))
        if any(other_config != layer_config for other_config in per_layer_config.values()) or not isinstance(
            layer_config, dict
        ):
            config.fail("per_layer_config", "layers of different sizes of heads are not modelled")
        head_dim, kv_heads = layer_config.get("head_dim", head_dim), layer_config.get("num_key_value_heads", kv_heads)
    if not config.config.get("attention_k_eq_v"):
        kv_heads = size.kv_heads
    check_groups(config, size.heads, kv_heads, "num_global_key_value_heads")
    return size._replace(head_dim=head_dim, kv_heads=kv_heads)


def gemma4_attention(size: StackDimensions, *, bias: bool, keys_are_values: bool, reuses: bool) -> Attention:
    """Build attention with norms on queries, keys and (without a weight) values.

    ``keys_are_values``: there is no value projection. ``reuses``: keys and values are an earlier layer's.
    """
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        query_norm=head_norm(NORM, size.head_dim, "q"),
        key_norm=None if reuses else head_norm(NORM, size.head_dim, "k"),
    )
    absent_projections: tuple[str, ...]
    if reuses:
        attention, absent_projections = ReusingAttention(*attention), (".k_proj.", ".v_proj.")
    elif keys_are_values:
        attention, absent_projections = KeysAsValuesAttention(*attention), (".v_proj.",)
    else:
        return Gemma4Attention(*attention)
    tensors = [t for t in attention.tensors if not any(name in t.name for name in absent_projections)]
    return attention._replace(tensors=tuple(tensors))


def _moe(config: ConfigReader, hidden: int, width: int, activation: str) -> Moe:
    """Build routed experts in parallel with a dense MLP of ``width``; a norm follows each of the two."""
    experts, experts_per_token = config.integer("num_experts"), config.integer("top_k_experts")
    expert_width = config.integer("moe_intermediate_size")
    norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    tensors = (
        *linear("router.proj", experts, hidden, "router", "none"),
        vector("router.scale", hidden, "router"),
        vector("router.per_expert_scale", experts, "router"),
        *stacked_experts("experts", experts, hidden, expert_width),
        *gated_tensors("mlp", hidden, width, "shared_experts"),
        *(t for name in norms for t in norm_tensors(rms_norm(hidden, name, NORM))),
    )
    return StreamMoe(
        experts,
        experts_per_token,
        expert_width,
        gated=True,
        activation=activation,
        router="scaled",
        shared=SharedExperts(width, gate=False, runs_first=False),
        tensors=tensors,
        routing=NORMALISED_SCORES._replace(scores_fp32=True),
        bias=False,
    )


def per_layer_tensors(hidden: int, per_layer_width: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of one layer that gate and project its per-layer embedding of ``per_layer_width`` elements."""
    if not per_layer_width:
        return ()
    return (
        *linear("per_layer_input_gate", per_layer_width, hidden, "mlp", "none"),
        *linear("per_layer_projection", hidden, per_layer_width, "mlp", "none"),
        *norm_tensors(rms_norm(hidden, "post_per_layer_input_norm", NORM)),
    )


def per_layer_embedding_tensors(
    hidden: int, rows: int, width: int, per_layer_width: int
) -> tuple[ParameterTensor, ...]:
    """List the tensors of the per-layer embedding outside the layers: the table [rows, width], and the projection of
    hidden states.

    ``width``: of all layers together. ``per_layer_width``: of one layer; 0 for none.
    """
    if not per_layer_width:
        return ()
    return (
        ParameterTensor("model.embed_tokens_per_layer.weight", (rows, width), "embedding"),
        ParameterTensor("model.per_layer_model_projection.weight", (width, hidden), "embedding"),
        ParameterTensor("model.per_layer_projection_norm.weight", (per_layer_width,), "norm"),
    )
