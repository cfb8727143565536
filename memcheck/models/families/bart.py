"""BART, PLBART, mBART, Pegasus, M2M-100, Marian, Blenderbot and Whisper (modeling_bart.py and others): norms apart."""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    decoder,
    grouped_attention,
    layer_norm,
    norm_tensors,
    plain_mlp,
)
from memcheck.models.encoder import MAX_LAYERS, Encoder
from memcheck.models.module_types import EAGER, NestedMlp, WhisperAttention
from memcheck.models.reader import ConfigReader
from memcheck.models.types import (
    Architecture,
    Attention,
    BartModel,
    Block,
    CrossAttention,
    LogitCasts,
    Norm,
    ParameterTensor,
    Paths,
    PegasusModel,
)
from memcheck.record import Record

POSITION_OFFSET = 2
"""BartLearnedPositionalEmbedding has two rows more than positions."""
IRRELEVANT_KEYS = (
    "init_std", "classif_dropout", "classifier_dropout", "num_hidden_layers", "num_beams",
    "max_length", "min_length", "normalize_before", "normalize_embedding", "add_bias_logits", "add_final_layer_norm",
    "extra_pos_embeddings", "force_bos_token_to_be_generated", "static_position_embeddings", "save_step",
    "gradient_checkpointing",
)  # fmt: skip


class _Kind(Record):
    """How a class writes the layer."""

    post_norm: bool = False
    """Norms follow the residual addition, in place of norms before attention and feed-forward."""
    embedding_norm: bool = True
    """The looked-up rows are normalised."""
    whisper: bool = False
    """No bias of keys; scaled queries; heads are copied."""
    positions: int = 512
    """The class's default."""
    position_offset: int = POSITION_OFFSET
    model: type[Architecture] = BartModel
    sinusoids: bool = False
    """Positions are a buffer."""


BART = _Kind(post_norm=True, positions=1024)
MBART = _Kind(positions=1024)
PEGASUS = _Kind(embedding_norm=False, positions=1024, position_offset=0, model=PegasusModel)
MARIAN = _Kind(post_norm=True, embedding_norm=False, positions=1024, position_offset=0, model=PegasusModel)
M2M100 = _Kind(embedding_norm=False, positions=1024, model=Architecture, sinusoids=True)
BLENDERBOT_SMALL = _Kind(post_norm=True, positions=512, position_offset=0)
BLENDERBOT = _Kind(embedding_norm=False, positions=128, position_offset=0)
WHISPER = _Kind(embedding_norm=False, whisper=True, model=Architecture)


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: bart`` and ``plbart``: norms after the sums, and one after the
    embedding.
    """
    return _text_to_text(config, BART)


def read_blenderbot_small(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: blenderbot-small``: BART's norms, and positions without an offset."""
    return _text_to_text(config, BLENDERBOT_SMALL)


def read_mbart(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: mbart``: norms in front of the halves, one after the embedding and one
    after each stack.
    """
    return _text_to_text(config, MBART)


def read_pegasus(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: pegasus``: norms in front of the halves, and sinusoids as positions, which
    are not trained.
    """
    return _text_to_text(config, PEGASUS)


def read_marian(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: marian``: norms after the sums, none after the embedding, and sinusoids as
    positions.
    """
    words = config.integer("vocab_size")
    if config.integer("decoder_vocab_size", default=words, null=words) != words:
        config.fail("decoder_vocab_size", "two vocabularies have no memory model", "remove decoder_vocab_size")
    if not config.flag("share_encoder_decoder_embeddings", default=True):
        config.fail("share_encoder_decoder_embeddings", "two tables of words have no memory model", "set it to true")
    return _text_to_text(config, MARIAN)


def read_m2m100(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: m2m_100``, which NLLB's dense checkpoints name, too: mBART's layers;
    positions are a buffer.
    """
    return _text_to_text(config, M2M100)


def read_blenderbot(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: blenderbot``: norms in front of the halves and after each stack, none after
    the embedding.
    """
    config.ignore("encoder_no_repeat_ngram_size")
    return _text_to_text(config, BLENDERBOT)


def _text_to_text(config: ConfigReader, kind: _Kind) -> Architecture:
    """Read a text-to-text model with BART's layers. ``kind``: what distinguishes the family (norm placement,
    positions).
    """
    config.ignore(*IRRELEVANT_KEYS)
    hidden = config.integer("d_model", "hidden_size")
    position_rows = config.integer("max_position_embeddings", default=kind.positions) + kind.position_offset
    layers = _BartLayers(config, hidden, kind)
    norm = layer_norm(hidden, "model.encoder.layernorm_embedding") if kind.embedding_norm else None
    encoder_final_norm = None if kind.post_norm else layer_norm(hidden, "model.encoder.layer_norm")
    position_table = ParameterTensor(
        "model.encoder.embed_positions.weight", (position_rows, hidden), "position", fixed=kind.model is PegasusModel
    )
    encoder = Encoder(
        blocks=((layers.layer("encoder"), layers.layers("encoder")),),
        position_rows=0 if kind.sinusoids else position_rows,
        sinusoid_rows=position_rows if kind.sinusoids else 0,
        positions_are_frozen=kind.model is PegasusModel,
        embedding_norm=norm,
        embedding_scale="module",
        dropout=layers.dropout,
        final_norm=encoder_final_norm,
        tensors=(
            *(() if kind.sinusoids else (position_table,)),
            *norm_tensors(norm),
            *norm_tensors(encoder_final_norm),
        ),
        closing_tensors=len(norm_tensors(encoder_final_norm)),
    )
    architecture = _encoder_decoder(config, layers, encoder, 0 if kind.sinusoids else position_rows)
    return kind.model(*architecture)._replace(
        embedding_norm=layer_norm(hidden, "model.decoder.layernorm_embedding") if kind.embedding_norm else None,
        embedding_scale="module",
        max_position_embeddings=0 if kind.sinusoids else position_rows - kind.position_offset,
        final_norm=None if kind.post_norm else layer_norm(hidden, "model.decoder.layer_norm"),
        paths=Paths(
            layers="model.decoder.layers",
            embedding="model.shared",
            positions="model.decoder.embed_positions",
            head="lm_head",
        ),
    )


def read_whisper(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: whisper``: two convolutions make 1500 rows of 30 seconds, however long the
    sound is.
    """
    config.ignore(
        *IRRELEVANT_KEYS, "classifier_proj_size", "median_filter_width", "use_weighted_layer_sum", "max_length"
    )
    for key in ("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks"):
        config.ignore(key, key.replace("time", "feature"))
    hidden = config.integer("d_model", "hidden_size")
    layers = _BartLayers(config, hidden, WHISPER)
    mel_bins = config.integer("num_mel_bins", default=80)
    encoder_positions = config.integer("max_source_positions", default=1500)
    decoder_positions = config.integer("max_target_positions", "max_position_embeddings", default=448)
    encoder_final_norm = layer_norm(hidden, "model.encoder.layer_norm")
    positions = ParameterTensor(
        "model.encoder.embed_positions.weight", (encoder_positions, hidden), "position", fixed=True
    )
    encoder = Encoder(
        blocks=((layers.layer("encoder"), layers.layers("encoder")),),
        rows_per_sample=encoder_positions,
        decoder_tokens=decoder_positions,
        mel_bins=mel_bins,
        position_rows=encoder_positions,
        positions_are_frozen=True,
        dropout=layers.dropout,
        final_norm=encoder_final_norm,
        tensors=(*_sound_convolutions(hidden, mel_bins), positions, *norm_tensors(encoder_final_norm)),
        closing_tensors=len(norm_tensors(encoder_final_norm)),
    )
    return _encoder_decoder(config, layers, encoder, decoder_positions)._replace(
        max_position_embeddings=decoder_positions,
        positions_each=True,
        final_norm=layer_norm(hidden, "model.decoder.layer_norm"),
        paths=Paths(
            layers="model.decoder.layers",
            embedding="model.decoder.embed_tokens",
            positions="model.decoder.embed_positions",
            head="proj_out",
        ),
    )


def _sound_convolutions(hidden: int, mel_bins: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of Whisper's two convolutions over time, from ``mel_bins`` to ``hidden`` channels."""
    path = "model.encoder."
    return (
        ParameterTensor(path + "conv1.weight", (hidden, mel_bins, 3), "encoder"),
        ParameterTensor(path + "conv1.bias", (hidden,), "encoder"),
        ParameterTensor(path + "conv2.weight", (hidden, hidden, 3), "encoder"),
        ParameterTensor(path + "conv2.bias", (hidden,), "encoder"),
    )


def _encoder_decoder(
    config: ConfigReader, stack_layers: _BartLayers, encoder: Encoder, learned_positions: int
) -> Architecture:
    """Build one architecture of an encoder and a decoder.

    ``learned_positions``: rows of the decoder's position table; 0 for sinusoids.
    """
    layers = stack_layers.layers("decoder")
    heads = config.integer("decoder_attention_heads")
    size = StackDimensions(
        hidden=stack_layers.hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=stack_layers.hidden // heads,
        vocab=config.integer("vocab_size"),
        positions=learned_positions,
    )
    return decoder(
        config,
        size,
        ((stack_layers.layer("decoder"), layers),),
        tied=True,
        rotary_dim=0,
        learned_positions=learned_positions,
        embedding_dropout=stack_layers.dropout,
        logit_casts=LogitCasts(in_model=False, in_loss=False),
        encoder=encoder,
    )


class _BartLayers:
    """The layers of both stacks."""

    def __init__(self, config: ConfigReader, hidden: int, kind: _Kind) -> None:
        """Read what encoder and decoder layers have in common. ``hidden``: channels of the residual stream."""
        self._config, self.hidden, self._kind = config, hidden, kind
        self.dropout = config.dropout("dropout", default=0.0 if kind.whisper else 0.1)
        config.flag("scale_embedding")  # BART multiplies by 1 without it; Whisper never multiplies
        self._inner = config.dropout("activation_dropout")
        self._attention_dropout = config.dropout("attention_dropout")
        self._activation = config.activation("activation_function", default="gelu")
        for key in ("encoder_layerdrop", "decoder_layerdrop"):
            if config.dropout(key):
                config.note(f"{key}: layers that are skipped at random are counted as if none were")

    def layers(self, stack: str) -> int:
        """How many layers a stack has."""
        return self._config.integer(f"{stack}_layers", maximum=MAX_LAYERS)

    def layer(self, stack: str) -> Block:
        """Build a layer of the encoder or of the decoder."""
        kind, hidden = self._kind, self.hidden
        heads, width = self._config.integer(f"{stack}_attention_heads"), self._config.integer(f"{stack}_ffn_dim")
        if hidden % heads:
            self._config.fail(
                f"{stack}_attention_heads", f"hidden size {hidden} is no multiple of {heads} attention heads"
            )
        mlp = plain_mlp(hidden, width, self._activation, "fc1", "fc2", bias=True)
        block = Block(
            mixer=self._attention("self_attn", heads, bidirectional=stack == "encoder"),
            mlp=NestedMlp(*mlp._replace(inner_dropout=self._inner)),
            input_norm=self._norm("self_attn_layer_norm"),
            mlp_norm=self._norm("final_layer_norm"),
            residual="post-norm" if kind.post_norm else "",
            dropout=self.dropout,
        )
        if stack == "encoder":
            return block
        cross = self._attention("encoder_attn", heads, bidirectional=True)
        norm = self._norm("encoder_attn_layer_norm")
        return block._replace(cross=CrossAttention(attention=cross._replace(cross=True), norm=norm, output_norm=None))

    def _norm(self, name: str) -> Norm:
        return layer_norm(self.hidden, name)

    def _attention(self, module: str, heads: int, *, bidirectional: bool) -> Attention:
        """Build self- or cross-attention of one layer, with biases; Whisper's keys have none."""
        hidden, whisper = self.hidden, self._kind.whisper
        size = StackDimensions(
            hidden=hidden, layers=1, heads=heads, kv_heads=heads, head_dim=hidden // heads, vocab=1, positions=0
        )
        attention = grouped_attention(
            size,
            Projections(output="out_proj", module=module),
            qkv_bias=True,
            out_bias=True,
            rotary_dim=0,
            dropout=self._attention_dropout,
            bidirectional=bidirectional,
            eager=EAGER._replace(softmax_fp32=False),
            query_scale="constant" if whisper else "",
        )
        if not whisper:
            return attention
        tensors = tuple(t for t in attention.tensors if not t.name.endswith("k_proj.bias"))
        return WhisperAttention(*attention)._replace(tensors=tensors)
