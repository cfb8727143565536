"""ModernBERT (modeling_modernbert.py): pre-norm layers, rotary, gated, most of them with a window to both sides."""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    decoder,
    layer_norm,
    layer_types,
    linear,
    norm_tensors,
    read_attention,
    read_sizes,
    stack,
    with_attention,
)
from memcheck.models.module_types import HALF
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Block,
    EmbeddingModule,
    HeadLayer,
    LayerVariables,
    Mlp,
    ModernBertDecoder,
    NormedPooling,
    Paths,
)
from memcheck.record import Record

PROJECTIONS = Projections(("Wqkv",), "Wo", "attn")


class LayerKind(Record):
    """What sets a layer apart: hashable."""

    first: bool
    """The model's first layer, which has no norm before its attention."""
    window: int | None
    """Sliding window in tokens; None: full attention."""


SEPARATE = Projections(output="Wo", module="attn")


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: modernbert``: an encoder with a head for masked words."""
    period = config.integer("global_attn_every_n_layers", default=3)
    half = config.integer("local_attention", default=128) // 2
    config.ignore("sliding_window")
    return _assemble(config, PROJECTIONS, half, period, "head")


def read_decoder(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: modernbert-decoder``: its layers under a causal mask, with separate
    projections.
    """
    half = config.integer("local_attention", default=128) // 2
    period = config.integer("global_attn_every_n_layers", default=3)
    window = config.integer("sliding_window", default=half)
    architecture = _assemble(config, SEPARATE, window, period, "lm_head")
    blocks = with_attention(architecture.blocks, bidirectional=False)
    return ModernBertDecoder(*architecture)._replace(blocks=blocks, mask_windows=(None, window), pooling=None)


def _assemble(config: ConfigReader, projections: Projections, local: int, period: int, head: str) -> Architecture:
    """Return ModernBERT's architecture from its configuration.

    ``projections``: names of the attention's matrices. ``local``: tokens of a sliding window. ``period``: every such
    layer has full attention by default. ``head``: name of the head's module.
    """
    size = read_sizes(config, kv_heads="none", head_dim_key=False)
    hidden = size.hidden
    config.ignore("cls_token_id", "deterministic_flash_attn", "global_rope_theta", "initializer_cutoff_factor")
    config.ignore("local_rope_theta", "reference_compile", "repad_logits_with_grad", "sparse_pred_ignore_index")
    config.ignore("position_embedding_type")
    config.refuse("sparse_prediction", "logits of masked words alone have no memory model", "remove it")
    attention_types = layer_types(
        config, size.layers, lambda i: "sliding_attention" if i % period else "full_attention"
    )
    norm_bias = config.flag("norm_bias")
    rotation = HALF._replace(form="half-wide")
    attention = read_attention(config, size, projections, rotation=rotation, bidirectional=True)
    mlp = _mlp(config, hidden)

    def build_layer(kind: LayerKind) -> Block:
        """Build one layer; the model's first has no norm before its attention."""
        return Block(
            mixer=attention._replace(window=kind.window),
            mlp=mlp,
            input_norm=None if kind.first else layer_norm(hidden, "attn_norm", bias=norm_bias),
            mlp_norm=layer_norm(hidden, "mlp_norm", bias=norm_bias),
            lives_to_forward_end=LayerVariables(input_norm_output=False, mixer_output=True, mlp_input=False),
        )

    kinds = tuple(LayerKind(i == 0, local if t == "sliding_attention" else None) for i, t in enumerate(attention_types))
    head_layer = _head_layer(config, hidden, head, norm_bias=norm_bias)
    return decoder(
        config,
        size,
        stack(kinds, build_layer),
        tied=True,
        final_norm=layer_norm(hidden, "model.final_norm", bias=norm_bias),
        rotary_tables=len(set(attention_types)),
        embedding_norm=layer_norm(hidden, "model.embeddings.norm", bias=norm_bias),
        embedding_module=EmbeddingModule(is_separate=True, token_types=0),
        embedding_dropout=config.dropout("embedding_dropout"),
        head_bias=config.flag("decoder_bias", default=True),
        head_layer=head_layer,
        pooling=NormedPooling(
            head_layer.activation,
            head_layer.tensors,
            dropout=config.dropout("classifier_dropout"),
            rows="mean" if config.text("classifier_pooling", default="cls") == "mean" else "first",
            also_in=("token-classification",),
        ),
        paths=Paths(layers="model.layers", embedding="model.embeddings.tok_embeddings", head="decoder", positions=""),
    )


def _mlp(config: ConfigReader, hidden: int) -> Mlp:
    """Build ModernBertMLP: one matrix for gate and up, and a dropout before the last matrix."""
    width, bias = config.integer("intermediate_size"), config.flag("mlp_bias")
    tensors = linear("mlp.Wi", 2 * width, hidden, "mlp", "column", bias=bias)
    return Mlp(
        width=width,
        gated=True,
        activation=config.activation("hidden_activation", default="gelu"),
        bias=bias,
        fused_gate_up=True,
        inner_dropout=config.dropout("mlp_dropout"),
        tensors=tensors + linear("mlp.Wo", hidden, width, "mlp", "row", bias=bias),
    )


def _head_layer(config: ConfigReader, hidden: int, module: str, *, norm_bias: bool) -> HeadLayer:
    """Build ModernBertPredictionHead, the layer and norm before the head. ``norm_bias``: norms have biases."""
    bias = config.flag("classifier_bias")
    activation = config.activation("classifier_activation", default="gelu")
    norm = layer_norm(hidden, f"{module}.norm", bias=norm_bias)
    dense = linear(f"{module}.dense", hidden, hidden, "head", "none", bias=bias)
    return HeadLayer(activation, (*dense, *norm_tensors(norm)))
