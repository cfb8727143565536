"""ModernBERT (modeling_modernbert.py): pre-norm layers, rotary, gated, most of them with a window to both sides."""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    decoder,
    grouped_attention,
    layer_norm,
    layer_types,
    linear,
    norm_tensors,
    read_sizes,
    stack,
)
from memcheck.models.module_types import HALF
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Attention,
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
    blocks = tuple(
        (b._replace(mixer=b.mixer._replace(bidirectional=False)) if isinstance(b.mixer, Attention) else b, n)
        for b, n in architecture.blocks
    )
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
    bias, dropout = config.flag("attention_bias"), config.dropout("attention_dropout")
    norm_bias = config.flag("norm_bias")
    attention = grouped_attention(
        size,
        projections,
        qkv_bias=bias,
        out_bias=bias,
        rotation=HALF._replace(form="half-wide"),
        dropout=dropout,
        bidirectional=True,
    )
    width, mlp_bias = config.integer("intermediate_size"), config.flag("mlp_bias")
    activation = config.activation("hidden_activation", default="gelu")
    mlp = Mlp(
        width=width,
        gated=True,
        activation=activation,
        bias=mlp_bias,
        fused_gate_up=True,
        inner_dropout=config.dropout("mlp_dropout"),
        tensors=linear("mlp.Wi", 2 * width, hidden, "mlp", "column", bias=mlp_bias)
        + linear("mlp.Wo", hidden, width, "mlp", "row", bias=mlp_bias),
    )

    def build_layer(kind: LayerKind) -> Block:
        """Build one layer; the model's first has no norm before its attention."""
        return Block(
            mixer=attention._replace(window=kind.window),
            mlp=mlp,
            input_norm=None if kind.first else layer_norm(hidden, "attn_norm", bias=norm_bias),
            mlp_norm=layer_norm(hidden, "mlp_norm", bias=norm_bias),
            variables=LayerVariables(norm=False, output=True, mlp_input=False),
        )

    kinds = tuple(LayerKind(i == 0, local if t == "sliding_attention" else None) for i, t in enumerate(attention_types))
    dense_bias = config.flag("classifier_bias")
    norm = layer_norm(hidden, f"{head}.norm", bias=norm_bias)
    head_activation = config.activation("classifier_activation", default="gelu")
    head_tensors = (*linear(f"{head}.dense", hidden, hidden, "head", "none", bias=dense_bias), *norm_tensors(norm))
    return decoder(
        config,
        size,
        stack(kinds, build_layer),
        tied=True,
        final_norm=layer_norm(hidden, "model.final_norm", bias=norm_bias),
        rotary_tables=len(set(attention_types)),
        embedding_norm=layer_norm(hidden, "model.embeddings.norm", bias=norm_bias),
        embedding_module=EmbeddingModule(apart=True, token_types=0),
        embedding_dropout=config.dropout("embedding_dropout"),
        head_bias=config.flag("decoder_bias", default=True),
        head_layer=HeadLayer(activation=head_activation, tensors=head_tensors),
        pooling=NormedPooling(
            head_activation,
            head_tensors,
            dropout=config.dropout("classifier_dropout"),
            rows="mean" if config.text("classifier_pooling", default="cls") == "mean" else "first",
            also_in=("token-classification",),
        ),
        paths=Paths(layers="model.layers", embedding="model.embeddings.tok_embeddings", head="decoder", positions=""),
    )
