"""Gemma 3n, text (modeling_gemma3n.py): four streams that AltUp predicts and corrects around each layer, LAuReL in
parallel with attention, per-layer embeddings, sparse activations, and last layers that reuse keys and values.
"""

from __future__ import annotations

from memcheck.models.families.gemma import TANH_GELU
from memcheck.models.families.gemma4 import NORM, gemma4_attention, outer_tensors, per_layer_tensors, sharing_modes
from memcheck.models.feed_forward_types import GemmaMlp, SparseGemmaMlp
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import gated_mlp
from memcheck.models.parts.matrices import linear, norm_tensors, vector
from memcheck.models.parts.sizes import read_sizes
from memcheck.models.parts.stack import layer_types, stack
from memcheck.models.reader import ConfigReader
from memcheck.models.types import AltUpBlock, Architecture, Block, ParameterTensor, PerLayer, UnscaledAltUpBlock

SPARSE_LAYERS = 10
"""Layers in front whose activations are sparse by default, where there are more than these."""


def read(config: ConfigReader) -> Architecture:
    """``model_type: gemma3n_text``."""
    size = read_sizes(config, kv_heads="required", head_dim=256)
    hidden, window = size.hidden, config.window()
    config.ignore("altup_coef_clip", "hidden_act", "rope_local_base_freq", "query_pre_attn_scalar")
    if config.integer("altup_active_idx", default=0, minimum=0):
        config.fail("altup_active_idx", "memcheck has a model of the first stream as the active one", "write 0")
    types = layer_types(config, size.layers, lambda i: "sliding_attention" if (i + 1) % 5 else "full_attention")
    shared = config.integer("num_kv_shared_layers", default=15, null=0, minimum=0)
    widths = _each(config, "intermediate_size", size.layers)
    sparse = _sparse(config, size.layers)
    activation = config.activation("hidden_activation", default=TANH_GELU)
    streams, rank = config.integer("altup_num_inputs", default=4), config.integer("laurel_rank", default=64)
    scaled = config.flag("altup_correct_scale", default=True)
    each = config.integer("hidden_size_per_layer_input", default=256)
    rows = config.integer("vocab_size_per_layer_input", default=size.vocab, null=size.vocab)
    per_layer = PerLayer(width=each, total=size.layers * each, activation=activation)
    bias, dropout = config.flag("attention_bias"), config.dropout("attention_dropout")
    extra = (*_altup_tensors(hidden, streams), *_laurel_tensors(hidden, rank), *per_layer_tensors(hidden, each))

    def make(kind: tuple[str, str, int, bool]) -> Block:
        attention = gemma4_attention(size, bias=bias, same=False, reuses=kind[1] == "reuse")
        attention = attention._replace(stores_keys=kind[1] == "store")
        return (AltUpBlock if scaled else UnscaledAltUpBlock)(
            mixer=attention._replace(window=window if kind[0] == "sliding_attention" else None, dropout=dropout),
            mlp=(SparseGemmaMlp if kind[3] else GemmaMlp)(*gated_mlp(hidden, kind[2], activation)),
            input_norm=rms_norm(hidden, "input_layernorm", NORM),
            mlp_norm=rms_norm(hidden, "pre_feedforward_layernorm", NORM),
            mixer_output_norm=rms_norm(hidden, "post_attention_layernorm", NORM),
            mlp_output_norm=rms_norm(hidden, "post_feedforward_layernorm", NORM),
            extra_tensors=extra,
            own=per_layer,
        )

    modes = sharing_modes(types, shared)
    uncapped = "final_logit_softcapping" in config.config and config.raw("final_logit_softcapping") is None
    config.number("final_logit_softcapping", default=30.0)
    squares = tuple(
        ParameterTensor(f"model.altup_{name}projections.{i}.weight", (hidden, hidden), "embedding")
        for name in ("", "unembed_")
        for i in range(streams - 1)
    )
    found = decoder(
        config,
        size,
        stack(zip(types, modes, widths, sparse, strict=True), make),
        tied=True,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        embedding_scale="module",
        final_softcap=not uncapped,
        rotary_tables=len(set(types)),
        mask_windows=(None, window),
        per_layer=per_layer,
        extra_tensors=(*outer_tensors(hidden, rows, size.layers * each, each), *squares),
    )
    return found._replace(streams=streams)


def _each(config: ConfigReader, key: str, layers: int) -> tuple[int, ...]:
    """A width for every layer, or one for all."""
    if not isinstance(config.raw(key), (list, tuple)):
        return (config.integer(key),) * layers
    found = config.integers(key) or ()
    if len(found) != layers or min(found) < 1:
        config.fail(key, f"{key} names {len(found)} widths, the model has {layers} layers")
    return found


def _sparse(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers keep the largest activations alone: those whose share in the pattern is above 0."""
    pattern = config.raw("activation_sparsity_pattern")
    if pattern is None:
        return tuple(i < SPARSE_LAYERS < layers for i in range(layers))
    if not isinstance(pattern, (list, tuple)) or len(pattern) != layers:
        config.fail("activation_sparsity_pattern", f"a share for each of {layers} layers is needed")
    if not all(isinstance(p, (int, float)) for p in pattern):
        config.fail("activation_sparsity_pattern", "shares must be numbers")
    return tuple(p > 0 for p in pattern)


def _altup_tensors(hidden: int, streams: int) -> tuple[ParameterTensor, ...]:
    return (
        vector("altup.correct_output_scale", hidden, "mixer"),
        *linear("altup.correction_coefs", streams, streams, "mixer", "none"),
        *linear("altup.prediction_coefs", streams**2, streams, "mixer", "none"),
        *linear("altup.modality_router", streams, hidden, "mixer", "none"),
        *norm_tensors(rms_norm(hidden, "altup.router_norm", NORM)),
    )


def _laurel_tensors(hidden: int, rank: int) -> tuple[ParameterTensor, ...]:
    return (
        *linear("laurel.linear_left", rank, hidden, "mixer", "none"),
        *linear("laurel.linear_right", hidden, rank, "mixer", "none"),
        *norm_tensors(rms_norm(hidden, "laurel.post_laurel_norm", NORM)),
    )
