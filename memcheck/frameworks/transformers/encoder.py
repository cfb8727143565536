"""What stands around the layers of an encoder: its look-up or convolutions in front, a norm and dropout after them."""

from __future__ import annotations

from functools import lru_cache

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve
from memcheck.autograd.elementwise import dropout
from memcheck.autograd.modules import normalise
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.audio_stem import audio_stem_curve, convolutions
from memcheck.frameworks.transformers.embedding import Embedding, embedding_curve, embedding_forward
from memcheck.frameworks.transformers.masks import model_masks
from memcheck.models.encoder import Encoder, Words


def source(ctx: Context, encoder: Encoder, words: Words) -> Value:
    """The rows of the first layer: [samples x rows, hidden]."""
    if encoder.channels:
        return convolutions(ctx, encoder)
    return embedding_forward(ctx, _embedding(encoder, words, ctx.setting), ctx.setting.stream or ctx.setting.params)


@lru_cache(maxsize=256)
def source_curve(encoder: Encoder, words: Words, setting: Setting, inventory: bool) -> Curve:
    """The curve of what makes these rows; ``returned`` is ``inputs_embeds``, a variable of the encoder's forward."""
    if encoder.channels:
        return audio_stem_curve(encoder, setting, inventory=inventory)
    dtype = setting.stream or setting.params
    found = embedding_curve(_embedding(encoder, words, setting), setting, dtype, inventory=inventory)
    return found._replace(returned=found.freed_input, freed_input=0)


def end(ctx: Context, encoder: Encoder, x: Value) -> Value:
    """``last_hidden_state`` of the encoder; the rows themselves where nothing follows the layers."""
    out = normalise(ctx, encoder.final_norm, x)
    if encoder.final_norm is not None:
        x.storage = None
    return dropout(ctx.tape, out, encoder.final_dropout)


def masks(encoder: Encoder, setting: Setting) -> tuple[int, int, int]:
    """Bytes of the stack's masks: those that backward functions keep, that its layers are given, that none is."""
    found = model_masks((block for block, _ in encoder.blocks), setting, encoder.mask_windows)
    return found.graph, found.variables, found.unused


def _embedding(encoder: Encoder, words: Words, setting: Setting) -> Embedding:
    """The encoder's look-up. Its own positions are trained with its layers, whether the table is or not."""
    return Embedding(
        vocab=encoder.words or words.rows,
        width=words.width,
        positions=encoder.positions,
        norm=encoder.embedding_norm,
        scaled=encoder.embedding_scale != "",
        dropout=encoder.dropout,
        scaled_behind=encoder.embedding_scale == "named",
        trained=words.trained or setting.trained,
        table_frozen=not words.trained,
        positions_each=True,
        reused=not encoder.words,
        fixed_positions=encoder.fixed_positions,
        sinusoids=encoder.sinusoids > 0,
        leaf=words.leaf,
    )
