"""T5Gemma (modeling_t5gemma.py): two stacks of Gemma 2's layers, the decoder's with cross attention between halves."""

from __future__ import annotations

from memcheck.models.decoder import (
    Projections,
    StackDimensions,
    decoder,
    gated_mlp,
    grouped_attention,
    layer_types,
    norm_tensors,
    read_sizes,
    rms_norm,
    stack,
    windows,
)
from memcheck.models.encoder import MAX_LAYERS, Encoder
from memcheck.models.families.gemma import NORM, TANH_GELU, has_softcap
from memcheck.models.module_types import KERNELS
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Attention, Block, CrossAttention, ParameterTensor, Paths, T5GemmaModel

HARMLESS = (
    "query_pre_attn_scalar", "hidden_act", "is_decoder", "is_encoder_decoder", "use_cache", "tie_word_embeddings",
    "model_type", "cross_attention_hidden_size", "dropout_rate", "attention_dropout", "rope_theta", "rope_parameters",
    "rms_norm_eps", "initializer_range", "final_logit_softcapping", "cache_implementation",
)  # fmt: skip
"""Keys of either stack that its class overwrites with the model's, or that decide no tensor."""


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: t5gemma``: each stack has a table of words of its own; the head is the
    decoder's.
    """
    config.ignore("classifier_dropout_rate", "vocab_size", "initializer_range", "is_encoder_decoder")
    dropout, attention_dropout = config.dropout("dropout_rate"), config.dropout("attention_dropout")
    encoder_stack, decoder_stack = (
        _Stack(config.section(name), dropout, attention_dropout) for name in ("encoder", "decoder")
    )
    if encoder_stack.size.hidden != decoder_stack.size.hidden:
        widths = f"an encoder {encoder_stack.size.hidden} and a decoder {decoder_stack.size.hidden} wide"
        message = f"{widths} have no memory model"
        config.fail("encoder", message, "memcheck prices T5Gemma whose stacks are as wide as each other")
    norm = rms_norm(encoder_stack.size.hidden, "model.encoder.norm", NORM)
    table = ParameterTensor(
        "model.encoder.embed_tokens.weight",
        (encoder_stack.size.vocab, encoder_stack.size.hidden),
        "embedding",
        shard="vocab",
    )
    encoder = Encoder(
        blocks=encoder_stack.blocks(crosses=False),
        embedding_scale="named",
        own_word_rows=encoder_stack.size.vocab,
        dropout=dropout,
        final_norm=norm,
        final_dropout=dropout,
        tensors=(table, *norm_tensors(norm)),
        closing_tensors=len(norm_tensors(norm)),
        rotary_dim=encoder_stack.size.head_dim,
        mask_windows=(encoder_stack.window,),
    )
    decoder_config = decoder_stack.config
    architecture = decoder(
        config,
        decoder_stack.size,
        decoder_stack.blocks(crosses=True),
        tied=True,
        final_norm=rms_norm(decoder_stack.size.hidden, "model.decoder.norm", NORM),
        embedding_scale="named",
        embedding_dropout=dropout,
        final_dropout=dropout,
        final_softcap=has_softcap(decoder_config, "final_logit_softcapping", 30.0),
        mask_windows=(None, decoder_stack.window),
        encoder=encoder,
        paths=Paths(
            layers="model.decoder.layers", embedding="model.decoder.embed_tokens", head="lm_head.out_proj", positions=""
        ),
    )
    return T5GemmaModel(*architecture)


class _Stack:
    """One of the two stacks, from its own section."""

    def __init__(self, config: ConfigReader, dropout: float, attention_dropout: float) -> None:
        """Read a stack's section. ``dropout``, ``attention_dropout``: the model's, which replace the section's own.

        Raises:
            ArchitectureError: a key is missing, or there are more layers than memcheck reads.
        """
        self.config, self._dropout, self._dropped = config, dropout, attention_dropout
        self.size: StackDimensions = read_sizes(config, kv_heads="required", head_dim=256)
        if self.size.layers > MAX_LAYERS:
            config.fail("num_hidden_layers", f"{self.size.layers:,} layers are more than {MAX_LAYERS:,}")
        self.window = config.window()
        self._types = layer_types(
            config, self.size.layers, lambda i: "full_attention" if i % 2 else "sliding_attention"
        )
        if self.window is None and "sliding_attention" in self._types:
            config.integer("sliding_window")
        self._softcap = has_softcap(config, "attn_logit_softcapping", 50.0)
        self._bias = config.flag("attention_bias")
        self._activation = config.activation("hidden_activation", default=TANH_GELU)
        self._width = config.integer("intermediate_size")
        config.ignore(*HARMLESS)

    def blocks(self, *, crosses: bool) -> tuple[tuple[Block, int], ...]:
        """Return the stack's layers, each with the number of times it is repeated.

        ``crosses``: the stack is the decoder, whose layers also have cross attention.
        """
        hidden = self.size.hidden
        attention = self._attention("self_attn", bidirectional=not crosses)
        mlp = gated_mlp(hidden, self._width, self._activation)._replace(inner_dropout=self._dropout)

        def build_layer(window: int | None) -> Block:
            """Build one layer. ``window``: tokens of its sliding window, or None."""
            # a mask of ones comes with the ids, so that a window's mask is of each sequence
            block = Block(
                mixer=attention._replace(window=window, chunked_window=window is not None),
                mlp=mlp,
                input_norm=rms_norm(hidden, "pre_self_attn_layernorm", NORM),
                mlp_norm=rms_norm(hidden, "pre_feedforward_layernorm", NORM),
                mixer_output_norm=rms_norm(hidden, "post_self_attn_layernorm", NORM),
                mlp_output_norm=rms_norm(hidden, "post_feedforward_layernorm", NORM),
                dropout=self._dropout,
            )
            if not crosses:
                return block
            cross = self._attention("cross_attn", bidirectional=True)
            return block._replace(
                cross=CrossAttention(
                    attention=cross._replace(cross=True, rotary_dim=0),
                    norm=rms_norm(hidden, "pre_cross_attn_layernorm", NORM),
                    output_norm=rms_norm(hidden, "post_cross_attn_layernorm", NORM),
                )
            )

        return stack(windows(self._types, self.window), build_layer)

    def _attention(self, module: str, *, bidirectional: bool) -> Attention:
        """Return grouped attention with capped scores. ``module``: its path in the layer."""
        return grouped_attention(
            self.size,
            Projections(module=module),
            qkv_bias=self._bias,
            out_bias=self._bias,
            dropout=self._dropped,
            softcap=self._softcap,
            kernels=KERNELS._replace(sdpa=False),
            bidirectional=bidirectional,
        )
