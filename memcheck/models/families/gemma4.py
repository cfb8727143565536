"""Gemma 4, text (modeling_gemma4.py): wide heads in full layers, per-layer embeddings, shared keys, experts."""

from __future__ import annotations

from memcheck.models.attention_types import Gemma4Attention, KeysAsValuesAttention, ReusingAttention
from memcheck.models.families.gemma import TANH_GELU
from memcheck.models.feed_forward_types import StreamMoe
from memcheck.models.parts.attention import grouped_attention, head_norm
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp, gated_tensors, stacked_experts
from memcheck.models.parts.matrices import linear, norm_tensors, vector
from memcheck.models.parts.sizes import StackDimensions, check_groups, read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, Mlp, Moe, ParameterTensor, PerLayer
from memcheck.record import Record

NORM = "rmsnorm-fp32-weight"


class Kind(Record):
    """What sets a layer apart: hashable."""

    full: bool
    reuses: bool
    stores: bool = False


def read_unified(config: ConfigReader) -> Architecture:
    """``model_type: gemma4_unified_text``: neither per-layer embeddings nor experts."""
    for key in ("hidden_size_per_layer_input", "enable_moe_block"):
        if config.raw(key):
            config.fail(key, f"the model has no {key}", f"remove {key}")
    return _read(config, each=0)


def read(config: ConfigReader) -> Architecture:
    """``model_type: gemma4_text``."""
    return _read(config, each=config.integer("hidden_size_per_layer_input", default=256, null=0, minimum=0))


def _read(config: ConfigReader, *, each: int) -> Architecture:
    size = read_sizes(config, kv_heads="required", head_dim=256)
    hidden, window = size.hidden, config.window()
    config.ignore("hidden_act")
    if config.text("use_bidirectional_attention", default="vision") != "vision":
        config.fail("use_bidirectional_attention", "text that sees what follows it has no memory model", "vision has")
    period = 6
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if (i + 1) % period else "full_attention"
    )
    shared = config.integer("num_kv_shared_layers", default=0, null=0, minimum=0)
    modes = sharing_modes(attention_types, shared)
    kinds = tuple(
        Kind(t == "full_attention", mode == "reuse", mode == "store")
        for t, mode in zip(attention_types, modes, strict=True)
    )
    width, double = config.integer("intermediate_size"), config.flag("use_double_wide_mlp")
    activation = config.activation("hidden_activation", default=TANH_GELU)
    moe = _moe(config, hidden, width, activation) if config.flag("enable_moe_block") else None
    if moe is None:
        config.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
    wide = _wide(config, size)
    same = config.flag("attention_k_eq_v")
    rows = config.integer("vocab_size_per_layer_input", default=size.vocab, null=size.vocab)
    per_layer = PerLayer(width=each, total=size.layers * each, activation=activation) if each else None
    bias, dropout = config.flag("attention_bias"), config.dropout("attention_dropout")

    def build_layer(kind: Kind) -> Block:
        heads = wide if kind.full else size
        attention = gemma4_attention(heads, bias=bias, same=same and kind.full, reuses=kind.reuses)
        mlp: Mlp | Moe = moe or gated_mlp(hidden, width * 2 if double and kind.reuses else width, activation)
        return Block(
            mixer=attention._replace(window=None if kind.full else window, dropout=dropout, stores_keys=kind.stores),
            mlp=mlp,
            input_norm=rms_norm(hidden, "input_layernorm", NORM),
            mlp_norm=rms_norm(hidden, "pre_feedforward_layernorm", NORM),
            mixer_output_norm=rms_norm(hidden, "post_attention_layernorm", NORM),
            mlp_output_norm=rms_norm(hidden, "post_feedforward_layernorm", NORM),
            extra_tensors=per_layer_tensors(hidden, each),
            own=per_layer,
            scaled_output=True,
        )

    capped = "final_logit_softcapping" in config.config and config.raw("final_logit_softcapping") is not None
    architecture = decoder(
        config,
        size,
        stack(kinds, build_layer),
        tied=True,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        embedding_scale="module",
        final_softcap=capped,
        rotary_dims=tuple(dict.fromkeys(wide.head_dim if k.full else size.head_dim for k in kinds)),
        mask_windows=(None, window),
        per_layer=per_layer,
        extra_tensors=outer_tensors(hidden, rows, size.layers * each, each),
    )
    config.raw("final_logit_softcapping")
    return architecture


def sharing_modes(types: tuple[str, ...], shared: int) -> tuple[str, ...]:
    """``reuse`` for the last ``shared`` layers, ``store`` for the last of each kind before them, else ``own``."""
    first = len(types) - shared
    stored = {kind: i for i, kind in enumerate(types[:first])} if shared else {}
    return tuple("reuse" if i >= first else "store" if stored.get(t) == i else "own" for i, t in enumerate(types))


def _wide(config: ConfigReader, size: StackDimensions) -> StackDimensions:
    """Heads of the full layers: wider, and fewer of keys where those are the values too."""
    width = config.integer("global_head_dim", default=512, null=512)
    heads = config.integer("num_global_key_value_heads", default=size.kv_heads, null=size.kv_heads)
    written = config.raw("per_layer_config")
    if isinstance(written, dict) and written:  # as transformers 5 writes both
        first = next(iter(written.values()))
        if any(each != first for each in written.values()) or not isinstance(first, dict):
            config.fail("per_layer_config", "layers of different sizes of heads are not modelled")
        width, heads = first.get("head_dim", width), first.get("num_key_value_heads", heads)
    if not config.config.get("attention_k_eq_v"):
        heads = size.kv_heads
    check_groups(config, size.heads, heads, "num_global_key_value_heads")
    return size._replace(head_dim=width, kv_heads=heads)


def gemma4_attention(size: StackDimensions, *, bias: bool, same: bool, reuses: bool) -> Attention:
    """Norms on queries, keys and (without a weight) values; keys that are values; those of an earlier layer."""
    attention = grouped_attention(
        size,
        qkv_bias=bias,
        out_bias=bias,
        query_norm=head_norm(NORM, size.head_dim, "q"),
        key_norm=None if reuses else head_norm(NORM, size.head_dim, "k"),
    )
    variant = ReusingAttention if reuses else KeysAsValuesAttention if same else Gemma4Attention
    attention = variant(*attention)
    gone = ("k_proj", "v_proj") if reuses else ("v_proj",) if same else ()
    kept = tuple(t for t in attention.tensors if not any(f".{name}." in t.name for name in gone))
    return attention._replace(tensors=kept)


def _moe(config: ConfigReader, hidden: int, width: int, activation: str) -> Moe:
    """Experts in parallel with the dense network: they read the residual stream, and a norm follows each half."""
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
        shared_width=width,
        tensors=tensors,
        scores_fp32=True,
    )


def per_layer_tensors(hidden: int, each: int) -> tuple[ParameterTensor, ...]:
    """What multiplies a layer's own embedding in."""
    if not each:
        return ()
    return (
        *linear("per_layer_input_gate", each, hidden, "mlp", "none"),
        *linear("per_layer_projection", hidden, each, "mlp", "none"),
        *norm_tensors(rms_norm(hidden, "post_per_layer_input_norm", NORM)),
    )


def outer_tensors(hidden: int, rows: int, width: int, each: int) -> tuple[ParameterTensor, ...]:
    """The per-layer table, and what is added to its rows."""
    if not each:
        return ()
    return (
        ParameterTensor("model.embed_tokens_per_layer.weight", (rows, width), "embedding"),
        ParameterTensor("model.per_layer_model_projection.weight", (width, hidden), "embedding"),
        ParameterTensor("model.per_layer_projection_norm.weight", (each,), "norm"),
    )
