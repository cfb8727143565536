"""What transformers runs around an encoder's layers: a look-up or Whisper's convolutions before them, a norm after."""

from __future__ import annotations

from functools import lru_cache

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, closed, high
from memcheck.autograd.elementwise import cast, cast_weight, dropout, unary
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import factors, operator
from memcheck.autograd.tensor import Parameter, Tape, Value
from memcheck.frameworks.transformers.embedding import Embedding, embedding_curve, embedding_forward
from memcheck.frameworks.transformers.masks import model_masks
from memcheck.models.encoder import Encoder, Words

STRIDE = 2
"""The second convolution halves the frames."""


@lru_cache(maxsize=256)
def audio_stem_curve(encoder: Encoder, setting: Setting, *, inventory: bool = False) -> Curve:
    """Replay what runs in front of the first layer, whose input the output is; ``returned``: ``inputs_embeds``."""
    tape = Tape(autocast=setting.autocast, inventory=inventory)
    ctx = Context(tape, setting)
    y = convolutions(ctx, encoder)
    return closed(tape, ctx, y, high(tape))


def convolutions(ctx: Context, encoder: Encoder) -> Value:
    """Rows of the first layer: [batch x rows, hidden]."""
    tape, s = ctx.tape, ctx.setting
    names = ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")
    weights = [ctx.parameter(t.name, t.shape) for n in names for t in encoder.stem if t.name.endswith(n)]
    steps = STRIDE * ctx.sequence
    brought = (ctx.batch, encoder.channels, steps)
    features = Value(tape.new(brought if s.casts_features else (0,), s.params, "input_features"), brought, s.params)
    if s.casts_features:  # an argument of the root's forward: it lives as long as autocast's copies do
        held = Value(features.storage, brought, s.params)
        tape.casts[id(held)] = held
    x = _convolution(tape, features, weights[0], weights[1], (ctx.batch, ctx.hidden, steps))
    x = unary(tape, x, "gelu")
    x = _convolution(tape, x, weights[2], weights[3], (ctx.batch, ctx.hidden, ctx.sequence))
    x = unary(tape, x, "gelu")
    shape = (ctx.tokens, ctx.hidden)
    x = Value(x.storage, shape, x.dtype, x.origin)
    ctx.returned.append(Value(x.storage, shape, x.dtype))  # `inputs_embeds`
    table = next(t for t in encoder.stem if t.name.endswith("embed_positions.weight"))
    ctx.constant(table)
    positions = tape.new(table.shape, s.params, "positions")
    out = tape.value(shape, s.params, "add positions")  # fp32, added to autocast's rows
    own = x.dtype
    x = tape.record(out, (x,), lambda grad: [grad if grad.dtype == own else tape.new(shape, own, "to backward")])
    del positions
    return dropout(tape, x, encoder.dropout)


def _convolution(tape: Tape, x: Value, weight: Parameter, bias: Parameter, shape: tuple[int, ...]) -> Value:
    """``F.conv1d``: keeps its input if the weight is trained, and the weight if the input wants a gradient; all
    gradients come at once (derivatives.yaml, convolution).
    """
    b, w = tape.parameter(bias), tape.parameter(weight)
    if tape.autocast:
        b, w = cast_weight(tape, b, tape.autocast), cast_weight(tape, w, tape.autocast)
        if x.dtype != tape.autocast:
            x = cast(tape, x, tape.autocast, "autocast input")
    out = tape.value(shape, x.dtype, "convolution")
    nw = w.origin is not None
    sw, sb, dtype = w.shape, b.shape, x.dtype
    return operator(
        tape,
        out,
        (x, w, b),
        ["convolution dX", (sw, dtype, "convolution dW"), (sb, dtype, "convolution db") if nw else None],
        saves=factors(x, w),
    )


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
