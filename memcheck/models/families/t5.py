"""T5, mT5 and UMT5 (modeling_t5.py, modeling_umt5.py): positions are biases of the scores."""

from __future__ import annotations

from memcheck.models.encoder import MAX_LAYERS, Encoder
from memcheck.models.feed_forward_types import T5Mlp
from memcheck.models.parts.attention import Projections, grouped_attention
from memcheck.models.parts.decoder import decoder, rms_norm
from memcheck.models.parts.feed_forward import plain_mlp
from memcheck.models.parts.matrices import linear, norm_tensors
from memcheck.models.parts.sizes import StackDimensions
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    ClampedBlock,
    CrossAttention,
    Mlp,
    Norm,
    ParameterTensor,
    Paths,
)


def read(config: ConfigReader) -> Architecture:
    """``model_type: t5`` and ``mt5``: the first layer of each stack makes the biases of all."""
    return _assemble(config, apart=False)


def read_umt5(config: ConfigReader) -> Architecture:
    """``model_type: umt5``: every layer has a table of its own."""
    return _assemble(config, apart=True)


def _assemble(config: ConfigReader, *, apart: bool) -> Architecture:
    hidden, heads = config.integer("d_model", "hidden_size"), config.integer("num_heads", "num_attention_heads")
    layers = config.integer("num_layers", "num_hidden_layers", maximum=MAX_LAYERS)
    behind = config.integer("num_decoder_layers", default=layers, null=layers, maximum=MAX_LAYERS)
    size = StackDimensions(
        hidden=hidden,
        layers=behind,
        heads=heads,
        kv_heads=heads,
        head_dim=config.integer("d_kv", "head_dim"),
        vocab=config.integer("vocab_size"),
        positions=0,
    )
    config.ignore("relative_attention_max_distance", "n_positions", "output_past", "is_decoder", "eos_token_id")
    if config.flag("is_decoder"):
        config.fail("is_decoder", "decoders of this family alone are not modelled", "remove is_decoder")
    config.dropout("classifier_dropout")
    dropout = config.dropout("dropout_rate", default=0.1)
    parts = _T5Layers(config, size, dropout, config.integer("relative_attention_num_buckets", default=32))
    scaled, tied = _head(config)
    behind_first = ("own", "own-zeros") if apart else ("shared", "shared-zeros")
    at_first = ("own", "own-zeros") if apart else ("table", "zeros")
    first, others = (
        [parts.encoder_layer(kind) for kind in (at_first[0], behind_first[0])],
        [parts.decoder_layer(*kinds) for kinds in (at_first, behind_first)],
    )
    norm = rms_norm(hidden, "encoder.final_layer_norm", "rmsnorm-t5")
    encoder = Encoder(
        blocks=_runs(first, layers),
        dropout=dropout,
        final_norm=norm,
        final_dropout=dropout,
        tensors=norm_tensors(norm),
        ending=1,
        bias_heads=0 if apart else heads,
        path="encoder.block",
    )
    return decoder(
        config,
        size,
        _runs(others, behind),
        tied=tied,
        final_norm=rms_norm(hidden, "decoder.final_layer_norm", "rmsnorm-t5"),
        rotary_dim=0,
        embedding_dropout=dropout,
        final_dropout=dropout,
        head_input_scale=scaled,
        narrow_loss=True,
        encoder=encoder,
        fp32_params_of_fp16=(".wo",),
        paths=Paths(layers="decoder.block", embedding="shared"),
    )._replace(tie_word_embeddings=tied)


def _head(config: ConfigReader) -> tuple[bool, bool]:
    """Whether what the head reads is multiplied by a constant, and whether the head is the embedding's matrix.

    Files of checkpoints without the constant (T5 1.1, Flan, mT5) say ``tie_word_embeddings: false`` and have a head of
    their own, which is loaded (modeling_utils.py, tie_weights: what the checkpoint has is not tied). Files that
    transformers 5 writes state ``scale_decoder_outputs`` together with a tie that is real (configuration_t5.py).
    """
    apart = config.model_type != "t5"
    tied = config.flag("tie_word_embeddings", default=not apart)
    if config.model_type == "umt5":  # configuration_umt5.py ties the head, even if the file states false
        return True, tied
    scaled = config.flag("scale_decoder_outputs", default=tied and not apart)
    return scaled, tied


def _runs(layers: list[Block], count: int) -> tuple[tuple[Block, int], ...]:
    """The first layer, and those after it."""
    first, other = layers
    if first == other:
        return ((first, count),)
    return ((first, 1), (other, count - 1)) if count > 1 else ((first, 1),)


class _T5Layers:
    """The layers of both stacks."""

    def __init__(self, config: ConfigReader, size: StackDimensions, dropout: float, buckets: int) -> None:
        self._size, self._dropout, self._buckets = size, dropout, buckets
        stated = config.text("feed_forward_proj", default="relu" if config.model_type == "t5" else "gated-gelu")
        words = stated.split("-")
        gated = config.flag("is_gated_act", default=words[0] == "gated")
        default = "gelu_new" if stated == "gated-gelu" else words[-1]
        self._activation = config.activation("dense_act_fn", default=default)
        self._gated, self._width = gated, config.integer("d_ff")

    def encoder_layer(self, bias: str) -> Block:
        """Attention, feed-forward."""
        return ClampedBlock(
            mixer=self._attention("layer.0.SelfAttention", bias, bidirectional=True),
            mlp=self._mlp("layer.1.DenseReluDense"),
            input_norm=self._norm("layer.0.layer_norm"),
            mlp_norm=self._norm("layer.1.layer_norm"),
            dropout=self._dropout,
            inner_dropout=True,
        )

    def decoder_layer(self, bias: str, zeros: str) -> Block:
        """Attention, cross attention, feed-forward."""
        return ClampedBlock(
            mixer=self._attention("layer.0.SelfAttention", bias, bidirectional=False),
            mlp=self._mlp("layer.2.DenseReluDense"),
            input_norm=self._norm("layer.0.layer_norm"),
            mlp_norm=self._norm("layer.2.layer_norm"),
            cross=CrossAttention(
                attention=self._attention("layer.1.EncDecAttention", zeros, bidirectional=True)._replace(cross=True),
                norm=self._norm("layer.1.layer_norm"),
                output_norm=None,
            ),
            dropout=self._dropout,
            inner_dropout=True,
        )

    def _norm(self, name: str) -> Norm:
        return rms_norm(self._size.hidden, name, "rmsnorm-t5")

    def _attention(self, module: str, bias: str, *, bidirectional: bool) -> Attention:
        table = bias in ("table", "own")
        name = f"{module}.relative_attention_bias.weight"
        shape = (self._buckets, self._size.heads)
        return grouped_attention(
            self._size,
            Projections(("q", "k", "v"), "o", module),
            rotary_dim=0,
            dropout=self._dropout,
            bidirectional=bidirectional,
            softmax_fp32=False,
            flash=False,
            bias=bias,
            tensors=(ParameterTensor(name, shape, "position"),) if table else (),
        )

    def _mlp(self, module: str) -> Mlp:
        hidden, width, drop = self._size.hidden, self._width, self._dropout
        if not self._gated:
            found = plain_mlp(hidden, width, self._activation, f"{module}.wi", f"{module}.wo")
            return T5Mlp(*found._replace(inner_dropout=drop))
        tensors = (
            *linear(f"{module}.wi_0", width, hidden, "mlp", "column"),
            *linear(f"{module}.wi_1", width, hidden, "mlp", "column"),
            *linear(f"{module}.wo", hidden, width, "mlp", "row"),
        )
        return T5Mlp(
            width=width,
            gated=True,
            activation=self._activation,
            tensors=tensors,
            inner_dropout=drop,
        )
