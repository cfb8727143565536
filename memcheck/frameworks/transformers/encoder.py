"""What transformers runs around an encoder's layers: a look-up or Whisper's convolutions before them, a norm after."""

from __future__ import annotations

from functools import lru_cache

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, curve_without_input, peak_of
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, cast_weight, dropout, factors, operator, unary
from memcheck.autograd.tensor import Parameter, Tape, Value
from memcheck.frameworks.transformers.embedding import Embedding, embedding_curve, embedding_forward
from memcheck.frameworks.transformers.kernel_choice import model_masks
from memcheck.models.encoder import Encoder, Words

STRIDE = 2
"""The second convolution halves the frames."""


@lru_cache(maxsize=256)
def audio_stem_curve(encoder: Encoder, setting: Setting, *, inventory: bool = False) -> Curve:
    """Replay Whisper's convolutions before the first layer, and return their memory curve in bytes.

    The first layer's input is counted with that layer; ``extra_output_bytes`` of the curve are ``inputs_embeds``.
    """
    tape = Tape(autocast=setting.autocast_dtype, inventory=inventory)
    ctx = Context(tape, setting)
    y = convolutions(ctx, encoder)
    return curve_without_input(tape, ctx, y, peak_of(tape))


def convolutions(ctx: Context, encoder: Encoder) -> Value:
    """Run Whisper's two convolutions over audio features, and add the positions: [batch * sequence, hidden].

    The second convolution halves the frames. Source: modeling_whisper.py, WhisperEncoder.forward.
    """
    tape = ctx.tape

    def parameter(suffix: str) -> Parameter:
        """Register the stem's parameter of this name."""
        tensor = next(t for t in encoder.stem if t.name.endswith(suffix))
        return ctx.parameter(tensor.name, tensor.shape)

    weight1, bias1 = parameter("conv1.weight"), parameter("conv1.bias")
    weight2, bias2 = parameter("conv2.weight"), parameter("conv2.bias")
    frames = STRIDE * ctx.sequence
    features = _audio_features(ctx, (ctx.batch, encoder.mel_bins, frames))
    x = _convolution(tape, features, weight1, bias1, (ctx.batch, ctx.hidden, frames))
    x = unary(tape, x, "gelu")
    x = _convolution(tape, x, weight2, bias2, (ctx.batch, ctx.hidden, ctx.sequence))
    x = unary(tape, x, "gelu")
    x = Value(x.storage, (ctx.tokens, ctx.hidden), x.dtype, x.origin)
    ctx.extra_outputs.append(Value(x.storage, x.shape, x.dtype))  # `inputs_embeds`
    return dropout(tape, _with_audio_positions(ctx, encoder, x), encoder.dropout)


def _audio_features(ctx: Context, shape: tuple[int, ...]) -> Value:
    """Return ``input_features``, ``shape`` [batch, mel bins, frames].

    Their bytes are counted with the batch, unless FSDP casts them: the copy is an argument of the root's forward, which
    lives as long as autocast's copies do.
    """
    dtype, is_cast = ctx.setting.param_dtype, ctx.setting.casts_batch_features
    features = Value(ctx.tape.new(shape if is_cast else (0,), dtype, "input_features"), shape, dtype)
    if is_cast:
        cast_features = Value(features.storage, shape, dtype)
        ctx.tape.casts[id(cast_features)] = cast_features
    return features


def _with_audio_positions(ctx: Context, encoder: Encoder, x: Value) -> Value:
    """Add Whisper's fixed positions to ``x`` [tokens, hidden]; the sum has the dtype of the parameters."""
    tape, dtype = ctx.tape, ctx.setting.param_dtype
    table = next(t for t in encoder.stem if t.name.endswith("embed_positions.weight"))
    ctx.constant(table)
    positions = tape.new(table.shape, dtype, "positions")
    out = tape.value(x.shape, dtype, "add positions")  # fp32, added to autocast's rows
    out = operator(tape, out, x, GRAD_UNCHANGED if x.dtype == dtype else "to backward")
    del positions
    return out


def _convolution(tape: Tape, x: Value, weight: Parameter, bias: Parameter, shape: tuple[int, ...]) -> Value:
    """Run ``F.conv1d``, whose result has ``shape``. It saves its input and its weight for each other's gradients.

    All gradients come at once (derivatives.yaml, convolution).
    """
    bias_value, weight_value = tape.parameter(bias), tape.parameter(weight)
    if tape.autocast:
        bias_value = cast_weight(tape, bias_value, tape.autocast)
        weight_value = cast_weight(tape, weight_value, tape.autocast)
        if x.dtype != tape.autocast:
            x = cast(tape, x, tape.autocast, "autocast input")
    out = tape.value(shape, x.dtype, "convolution")
    weight_needs_grad = weight_value.needs_grad
    weight_shape, bias_shape, dtype = weight_value.shape, bias_value.shape, x.dtype
    return operator(
        tape,
        out,
        (x, weight_value, bias_value),
        [
            "convolution dX",
            (weight_shape, dtype, "convolution dW"),
            (bias_shape, dtype, "convolution db") if weight_needs_grad else None,
        ],
        saves=factors(x, weight_value),
    )


def source(ctx: Context, encoder: Encoder, words: Words) -> Value:
    """Compute the first layer's input of the encoder, [samples * rows, hidden], from audio features or words."""
    if encoder.mel_bins:
        return convolutions(ctx, encoder)
    return embedding_forward(
        ctx, _embedding(encoder, words, ctx.setting), ctx.setting.residual_dtype or ctx.setting.param_dtype
    )


@lru_cache(maxsize=256)
def source_curve(encoder: Encoder, words: Words, setting: Setting, inventory: bool) -> Curve:
    """Return the memory curve of what computes the encoder's input; ``extra_output_bytes`` are ``inputs_embeds``."""
    if encoder.mel_bins:
        return audio_stem_curve(encoder, setting, inventory=inventory)
    dtype = setting.residual_dtype or setting.param_dtype
    curve = embedding_curve(_embedding(encoder, words, setting), setting, dtype, inventory=inventory)
    return curve._replace(extra_output_bytes=curve.freed_input_bytes, freed_input_bytes=0)


def end(ctx: Context, encoder: Encoder, x: Value) -> Value:
    """Apply the encoder's final norm and dropout, and return its ``last_hidden_state``."""
    out = normalise(ctx, encoder.final_norm, x)
    if encoder.final_norm is not None:
        x.storage = None
    return dropout(ctx.tape, out, encoder.final_dropout)


def masks(encoder: Encoder, setting: Setting) -> tuple[int, int, int]:
    """Return bytes of the encoder's masks: those that backward keeps, those that layers get, and those that no layer
    gets.
    """
    mask_bytes = model_masks((block for block, _ in encoder.blocks), setting, encoder.mask_windows)
    return mask_bytes.held_by_graph, mask_bytes.held_by_variables, mask_bytes.unused_variables


def _embedding(encoder: Encoder, words: Words, setting: Setting) -> Embedding:
    """Describe the encoder's token embedding. Its positions train with its layers, even if the table is frozen."""
    return Embedding(
        vocab=encoder.own_word_rows or words.rows,
        width=words.width,
        position_rows=encoder.position_rows,
        norm=encoder.embedding_norm,
        scale=encoder.embedding_scale,
        dropout=encoder.dropout,
        trained=words.trained or setting.trained,
        table_frozen=not words.trained,
        positions_each=True,
        is_encoder_lookup=not encoder.own_word_rows,
        positions_are_frozen=encoder.positions_are_frozen,
        positions_are_buffer=encoder.sinusoid_rows > 0,
        rows_are_leaf=words.rows_are_leaf,
    )
