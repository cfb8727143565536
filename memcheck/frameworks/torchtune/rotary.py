"""torchtune's rotary modules, each with a table of all positions that the model was made for.

Sources at bd2a0fc7c: torchtune modules/position_embeddings.py, models/{llama3_1,phi3,qwen2}/_position*_embeddings.py;
which builder makes one module for all layers, and which one for each: models/*/_component_builders.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import rotate_half
from memcheck.autograd.operator import cast
from memcheck.autograd.tensor import ITEM_BYTES, Value, rounded
from memcheck.frameworks.transformers.rotary_apart import rotate_pairs
from memcheck.frameworks.transformers.states import rotary_width
from memcheck.models.types import Architecture, Attention

SCALED_FROM = 8192
"""Llama models of more positions are 3.1 or later: their rotation is scaled, and made once with adapters, too."""


def turns_halves(attention: Attention) -> bool:
    """Phi 3's and Qwen's modules turn halves of a head; the others turn pairs."""
    return is_phi3(attention) or attention.qkv_bias or attention.query_norm is not None


def is_phi3(attention: Attention) -> bool:
    """Phi 3 is the family of these whose rotation ends in a ``cat`` in transformers, too."""
    return attention.rotation.form == "cat"


def rotate(ctx: Context, attention: Attention, x: Value) -> Value:
    """Rotate heads, [batch, heads, sequence, head_dim], in fp32 and cast back.

    Qwen's module casts its rows of the table to the input's dtype instead.
    """
    tape = ctx.tape
    if not turns_halves(attention):
        return cast(tape, rotate_pairs(tape, cast(tape, x, "fp32"), "fp32"), x.dtype)
    if is_phi3(attention):
        return cast(tape, rotate_half(tape, x, "fp32", holds=True), x.dtype)
    rows, cast_to = (ctx.sequence, attention.head_dim), () if x.dtype == "fp32" else ("cos", "sin")
    return rotate_half(tape, x, x.dtype, tuple(tape.new(rows, x.dtype, name) for name in cast_to), holds=True)


def table_bytes(architecture: Architecture, sequence: int) -> int:
    """Return the bytes of the buffer ``cache`` in fp32: [positions, dim / 2, 2] of pairs, or [positions, 2 dim] of
    halves.
    """
    positions = max(architecture.max_position_embeddings, sequence)
    mixers = [block.mixer for block, _ in architecture.blocks]
    wide = 2 if any(isinstance(m, Attention) and turns_halves(m) for m in mixers) else 1
    return rounded(positions * rotary_width(architecture) * wide * ITEM_BYTES["fp32"])


def tables(architecture: Architecture, layers: int, *, adapted: bool) -> int:
    """Count the rotary tables of a model: its builders with adapters make one in each layer."""
    scaled = architecture.model_type == "llama" and architecture.max_position_embeddings > SCALED_FROM
    return layers if adapted and not scaled else 1
