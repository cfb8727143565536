"""Gemma 3n, text (modeling_gemma3n.py): four streams that AltUp predicts and corrects around each layer, LAuReL in
parallel with attention, per-layer embeddings, sparse activations, and last layers that reuse keys and values.
"""

from __future__ import annotations

from memcheck.models.decoder import (
    decoder,
    gated_mlp,
    layer_types,
    linear,
    norm_tensors,
    read_sizes,
    rms_norm,
    stack,
    vector,
)
from memcheck.models.families.gemma import TANH_GELU, sandwich_block
from memcheck.models.families.gemma4 import (
    NORM,
    gemma4_attention,
    kv_sharing_modes,
    per_layer_embedding_tensors,
    per_layer_tensors,
)
from memcheck.models.module_types import GemmaMlp, SparseGemmaMlp
from memcheck.models.reader import ConfigReader
from memcheck.models.types import AltUpBlock, Architecture, Block, ParameterTensor, PerLayer, UnscaledAltUpBlock

DEFAULT_SPARSE_LAYERS = 10
"""Layers in front whose activations are sparse by default, where there are more than these."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: gemma3n_text``: ``altup_num_inputs`` residual streams (AltUp), LAuReL, and
    an embedding per layer.

    The last ``num_kv_shared_layers`` layers reuse the keys and values of an earlier layer of their attention type.
    """
    size = read_sizes(config, kv_heads="required", head_dim=256)
    hidden, window = size.hidden, config.window()
    config.ignore("altup_coef_clip", "hidden_act", "rope_local_base_freq", "query_pre_attn_scalar")
    if config.integer("altup_active_idx", default=0, minimum=0):
        config.fail("altup_active_idx", "memcheck has a model of the first stream as the active one", "write 0")
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if (i + 1) % 5 else "full_attention"
    )
    kv_shared_layers = config.integer("num_kv_shared_layers", default=15, null=0, minimum=0)
    mlp_widths = _mlp_widths(config, "intermediate_size", size.layers)
    sparse_layers = _sparse_layers(config, size.layers)
    activation = config.activation("hidden_activation", default=TANH_GELU)
    streams, laurel_rank = config.integer("altup_num_inputs", default=4), config.integer("laurel_rank", default=64)
    scales_correction = config.flag("altup_correct_scale", default=True)
    per_layer_width = config.integer("hidden_size_per_layer_input", default=256)
    per_layer_vocab = config.integer("vocab_size_per_layer_input", default=size.vocab, null=size.vocab)
    per_layer = PerLayer(width=per_layer_width, total=size.layers * per_layer_width, activation=activation)
    bias, dropout = config.flag("attention_bias"), config.dropout("attention_dropout")
    layer_tensors = (
        *_altup_tensors(hidden, streams),
        *_laurel_tensors(hidden, laurel_rank),
        *per_layer_tensors(hidden, per_layer_width),
    )

    def build_layer(kind: tuple[str, str, int, bool]) -> Block:
        """Build one layer. ``kind``: attention type, key-value mode (``store``, ``reuse``), MLP width, sparse
        activations.
        """
        attention_type, kv_mode, mlp_width, is_sparse = kind
        attention = gemma4_attention(size, bias=bias, keys_are_values=False, reuses=kv_mode == "reuse")
        attention = attention._replace(stores_keys=kv_mode == "store")
        block_type = AltUpBlock if scales_correction else UnscaledAltUpBlock
        mlp_type = SparseGemmaMlp if is_sparse else GemmaMlp
        attention = attention._replace(
            window=window if attention_type == "sliding_attention" else None, dropout=dropout
        )
        block = sandwich_block(hidden, attention, mlp_type(*gated_mlp(hidden, mlp_width, activation)), NORM)
        return block_type(*block)._replace(extra_tensors=layer_tensors, extension=per_layer)

    kv_modes = kv_sharing_modes(attention_types, kv_shared_layers)
    uncapped = "final_logit_softcapping" in config.config and config.raw("final_logit_softcapping") is None
    config.number("final_logit_softcapping", default=30.0)
    architecture = decoder(
        config,
        size,
        stack(zip(attention_types, kv_modes, mlp_widths, sparse_layers, strict=True), build_layer),
        tied=True,
        final_norm=rms_norm(hidden, "model.norm", NORM),
        embedding_scale="module",
        final_softcap=not uncapped,
        rotary_tables=len(set(attention_types)),
        mask_windows=(None, window),
        extra_tensors=(
            *per_layer_embedding_tensors(hidden, per_layer_vocab, size.layers * per_layer_width, per_layer_width),
            *_stream_projections(hidden, streams),
        ),
    )
    return architecture._replace(streams=streams)


def _stream_projections(hidden: int, streams: int) -> tuple[ParameterTensor, ...]:
    """List the matrices that make the other streams of the embedding, and one row of all streams for the head."""
    return tuple(
        ParameterTensor(f"model.altup_{name}.{i}.weight", (hidden, hidden), "embedding")
        for name in ("projections", "unembed_projections")
        for i in range(streams - 1)
    )


def _mlp_widths(config: ConfigReader, key: str, layers: int) -> tuple[int, ...]:
    """Read the MLP's inner width of every layer from ``key``: a list, or one number for all."""
    if not isinstance(config.raw(key), (list, tuple)):
        return (config.integer(key),) * layers
    widths = config.integers(key) or ()
    if len(widths) != layers or min(widths) < 1:
        config.fail(key, f"{key} names {len(widths)} widths, the model has {layers} layers")
    return widths


def _sparse_layers(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Say for each layer whether its MLP keeps only the largest activations (``activation_sparsity_pattern`` above
    0).
    """
    pattern = config.raw("activation_sparsity_pattern")
    if pattern is None:
        return tuple(i < DEFAULT_SPARSE_LAYERS < layers for i in range(layers))
    if not isinstance(pattern, (list, tuple)) or len(pattern) != layers:
        config.fail("activation_sparsity_pattern", f"a share for each of {layers} layers is needed")
    if not all(isinstance(share, (int, float)) for share in pattern):
        config.fail("activation_sparsity_pattern", "shares must be numbers")
    return tuple(share > 0 for share in pattern)


def _altup_tensors(hidden: int, streams: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of ``Gemma3nTextAltUp``, which predicts and corrects ``streams`` residual streams around a
    layer.
    """
    return (
        vector("altup.correct_output_scale", hidden, "mixer"),
        *linear("altup.correction_coefs", streams, streams, "mixer", "none"),
        *linear("altup.prediction_coefs", streams**2, streams, "mixer", "none"),
        *linear("altup.modality_router", streams, hidden, "mixer", "none"),
        *norm_tensors(rms_norm(hidden, "altup.router_norm", NORM)),
    )


def _laurel_tensors(hidden: int, rank: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of ``Gemma3nTextLaurelBlock``: a low-rank residual branch parallel to attention."""
    return (
        *linear("laurel.linear_left", rank, hidden, "mixer", "none"),
        *linear("laurel.linear_right", hidden, rank, "mixer", "none"),
        *norm_tensors(rms_norm(hidden, "laurel.post_laurel_norm", NORM)),
    )
