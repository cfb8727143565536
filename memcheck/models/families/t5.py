"""T5, mT5 and UMT5 (modeling_t5.py, modeling_umt5.py): positions are biases of the scores."""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    decoder,
    grouped_attention,
    linear,
    norm_tensors,
    plain_mlp,
    rms_norm,
)
from memcheck.models.encoder import MAX_LAYERS, Encoder
from memcheck.models.module_types import EAGER, KERNELS, T5Mlp
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    ClampedBlock,
    CrossAttention,
    Fp32Params,
    LogitCasts,
    Mlp,
    Norm,
    ParameterTensor,
    Paths,
)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: t5`` and ``mt5``: the first layer of each stack computes the relative
    position biases of all its layers.
    """
    return _assemble(config, table_per_layer=False)


def read_umt5(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: umt5``: every layer has a relative position table of its own."""
    return _assemble(config, table_per_layer=True)


def _assemble(config: ConfigReader, *, table_per_layer: bool) -> Architecture:
    """Build T5's encoder and decoder.

    ``table_per_layer``: each layer has its own table of relative positions; otherwise only the first of each stack.
    """
    hidden, heads = config.integer("d_model", "hidden_size"), config.integer("num_heads", "num_attention_heads")
    encoder_layers = config.integer("num_layers", "num_hidden_layers", maximum=MAX_LAYERS)
    decoder_layers = config.integer(
        "num_decoder_layers", default=encoder_layers, null=encoder_layers, maximum=MAX_LAYERS
    )
    size = StackDimensions(
        hidden=hidden,
        layers=decoder_layers,
        heads=heads,
        kv_heads=heads,
        head_dim=config.integer("d_kv", "head_dim"),
        vocab=config.integer("vocab_size"),
        positions=0,
    )  # of the decoder; the encoder has layers of its own number
    config.ignore("relative_attention_max_distance", "n_positions", "output_past", "is_decoder", "eos_token_id")
    config.refuse("is_decoder", "decoders of this family alone are not modelled", "remove is_decoder")
    config.dropout("classifier_dropout")
    dropout = config.dropout("dropout_rate", default=0.1)
    stack = _T5Layers(config, size, dropout, config.integer("relative_attention_num_buckets", default=32))
    scales_head_input, tied = _head_scaling_and_tie(config)
    later_bias = ("own", "own-zeros") if table_per_layer else ("shared", "shared-zeros")
    first_bias = ("own", "own-zeros") if table_per_layer else ("table", "zeros")
    # the first layer of each stack, and every later one; the second word is that of cross attention
    encoder_blocks = [stack.encoder_layer(bias) for bias, _ in (first_bias, later_bias)]
    decoder_blocks = [stack.decoder_layer(*biases) for biases in (first_bias, later_bias)]
    encoder = _encoder(hidden, _layer_runs(encoder_blocks, encoder_layers), dropout)
    if not table_per_layer:
        encoder = encoder._replace(position_bias_heads=heads)
    return decoder(
        config,
        size,
        _layer_runs(decoder_blocks, decoder_layers),
        tied=tied,
        final_norm=rms_norm(hidden, "decoder.final_layer_norm", "rmsnorm-t5"),
        rotary_dim=0,
        embedding_dropout=dropout,
        final_dropout=dropout,
        head_input_scale=scales_head_input,
        logit_casts=LogitCasts(in_model=False, in_loss=False),
        encoder=encoder,
        fp32_params=Fp32Params(always=(), of_fp16=(".wo",)),
        paths=Paths(layers="decoder.block", embedding="shared", positions="", head="lm_head"),
    )._replace(tie_word_embeddings=tied)


def _encoder(hidden: int, blocks: tuple[tuple[Block, int], ...], dropout: float) -> Encoder:
    """Build T5's encoder of these runs of layers, with a norm after the last."""
    final_norm = rms_norm(hidden, "encoder.final_layer_norm", "rmsnorm-t5")
    return Encoder(
        blocks=blocks,
        dropout=dropout,
        final_norm=final_norm,
        final_dropout=dropout,
        tensors=norm_tensors(final_norm),
        closing_tensors=len(norm_tensors(final_norm)),
        layers_path="encoder.block",
    )


def _head_scaling_and_tie(config: ConfigReader) -> tuple[bool, bool]:
    """Say whether the head's input is scaled by a constant, and whether the head is the embedding's matrix.

    Files of checkpoints without the constant (T5 1.1, Flan, mT5) say ``tie_word_embeddings: false`` and have a head of
    their own, which is loaded (modeling_utils.py, tie_weights: what the checkpoint has is not tied). Files that
    transformers 5 writes state ``scale_decoder_outputs`` together with a tie that is real (configuration_t5.py).
    """
    untied_by_default = config.model_type != "t5"
    tied = config.flag("tie_word_embeddings", default=not untied_by_default)
    if config.model_type == "umt5":  # configuration_umt5.py ties the head, even if the file states false
        return True, tied
    scales_input = config.flag("scale_decoder_outputs", default=tied and not untied_by_default)
    return scales_input, tied


def _layer_runs(layers: list[Block], count: int) -> tuple[tuple[Block, int], ...]:
    """Return a stack's runs of equal layers as (layer, how many). ``layers``: the first layer, and the one that
    follows.

    ``count``: layers of the stack.
    """
    first, second = layers
    if first == second:
        return ((first, count),)
    return ((first, 1), (second, count - 1)) if count > 1 else ((first, 1),)


class _T5Layers:
    """The layers of both stacks."""

    def __init__(self, config: ConfigReader, size: StackDimensions, dropout: float, buckets: int) -> None:
        """Read what both stacks' layers have in common. ``buckets``: rows of the table of relative positions."""
        self._size, self._dropout, self._buckets = size, dropout, buckets
        stated = config.text("feed_forward_proj", default="relu" if config.model_type == "t5" else "gated-gelu")
        words = stated.split("-")
        gated = config.flag("is_gated_act", default=words[0] == "gated")
        default = "gelu_new" if stated == "gated-gelu" else words[-1]
        self._activation = config.activation("dense_act_fn", default=default)
        self._gated, self._width = gated, config.integer("d_ff")

    def encoder_layer(self, bias: str) -> Block:
        """Build an encoder layer: self-attention and MLP. ``bias``: where its relative position bias comes from."""
        return ClampedBlock(
            mixer=self._attention("layer.0.SelfAttention", bias, bidirectional=True),
            mlp=self._mlp("layer.1.DenseReluDense"),
            input_norm=self._norm("layer.0.layer_norm"),
            mlp_norm=self._norm("layer.1.layer_norm"),
            dropout=self._dropout,
            dropout_place="inner",
        )

    def decoder_layer(self, bias: str, zeros: str) -> Block:
        """Build a decoder layer: self-attention, cross-attention, MLP.

        ``bias``: where the self-attention's relative position bias comes from. ``zeros``: the same for the
        cross-attention, whose bias is a tensor of zeros.
        """
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
            dropout_place="inner",
        )

    def _norm(self, name: str) -> Norm:
        return rms_norm(self._size.hidden, name, "rmsnorm-t5")

    def _attention(self, module: str, bias: str, *, bidirectional: bool) -> Attention:
        """Return T5's attention. ``bias``: where its position bias comes from; with ``table`` or ``own`` it has a
        table.
        """
        table = bias in ("table", "own")
        name = f"{module}.relative_attention_bias.weight"
        shape = (self._buckets, self._size.heads)
        return grouped_attention(
            self._size,
            Projections(("q", "k", "v"), "o", module),
            rotary_dim=0,
            dropout=self._dropout,
            bidirectional=bidirectional,
            eager=EAGER._replace(softmax_fp32=False),
            kernels=KERNELS._replace(flash=False),
            position_bias=bias,
            tensors=(ParameterTensor(name, shape, "position"),) if table else (),
        )

    def _mlp(self, module: str) -> Mlp:
        """Return the MLP: two matrices, or three with a gate. ``module``: its path in the layer."""
        hidden, width, dropout = self._size.hidden, self._width, self._dropout
        if not self._gated:
            plain = plain_mlp(hidden, width, self._activation, f"{module}.wi", f"{module}.wo")
            return T5Mlp(*plain._replace(inner_dropout=dropout))
        tensors = (
            *linear(f"{module}.wi_0", width, hidden, "mlp", "column"),
            *linear(f"{module}.wi_1", width, hidden, "mlp", "column"),
            *linear(f"{module}.wo", hidden, width, "mlp", "row"),
        )
        return T5Mlp(
            width=width, gated=True, activation=self._activation, tensors=tensors, inner_dropout=dropout, bias=False
        )
