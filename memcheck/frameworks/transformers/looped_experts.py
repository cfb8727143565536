"""Experts that a class runs one after the other, where transformers' grouped products do not reach them.

modeling_dbrx.py (DbrxExperts), modeling_step3p7.py (Step3p7Experts), modeling_longcat_flash.py (LongcatFlashExperts,
the last of which hand tokens on as they are) of transformers 5.23: each expert's tokens are
looked up, and what it makes of them is added to a tensor of all in place. Its matrices are picked out of a stack, whose
gradient is made whole for every one of them.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, mul
from memcheck.autograd.indexing import index
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import SAVED_WEIGHT, Dim, Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.adapters import factors_of
from memcheck.frameworks.transformers.moe import expert_weight, gate
from memcheck.models.feed_forward_types import IdentityMoe
from memcheck.models.types import Moe

MOST = 32
"""Turns that a loop over more experts is replayed in: what stays is that of all of them."""


def looped_experts(ctx: Context, m: Moe, x: Value, scores: Value) -> Value:
    """``final.index_add_(0, tokens, expert(hidden_states[tokens]) * scores[tokens])`` of every expert, load even."""
    tape, (tokens, hidden) = ctx.tape, x.shape
    total = tape.value(x.shape, x.dtype, "sum of experts")
    identities = m.identities if isinstance(m, IdentityMoe) else 0
    classes = m.experts if identities else m.experts + 1
    mask = tape.new((tokens, m.experts_per_token, classes), "int64", "one_hot")
    local = -(-(m.experts - identities) // ctx.setting.expert)
    every = -(-m.experts // ctx.setting.expert)
    width = -(-m.width // ctx.setting.expert_tensor)
    *ups, down = (t for t in m.tensors if t.group == "experts")
    outputs = 2 * width if m.gated and len(ups) == 1 else width
    merged: list[Value] = []
    adapters = {t.name: factors_of(ctx, m, t, ctx.setting.params) for t in (*ups, down)}
    if any(adapters.values()) and not identities:
        raise UnsupportedError(
            "adapters of stacked experts that run one after the other have no memory model",
            "name no stacked experts in lora.target_parameters",
            "/training/lora/target_parameters",
        )
    stacks = [expert_weight(ctx, t, (every, outputs, hidden), adapters, merged) for t in ups]
    names = [t.name for t in ups]
    last = expert_weight(ctx, down, (local, hidden, width), adapters, merged)
    variables: list[Value] = []
    turns = min(local, MOST)
    each = -(-local // turns)
    rows = Dim(-(-tokens * m.experts_per_token * each // every), "T*K/E")
    for _ in range(turns):
        places = tape.new((rows, 2), "int64", "token and choice of each row")
        states = index(tape, x, places, (rows, hidden), "gather tokens")
        made = [picked_product(tape, states, *of, outputs, each) for of in zip(stacks, names, strict=True)]
        variables = [states, *made] if identities else []  # of the loop, to its next turn
        del states
        if len(made) > 1:
            inner = mul(tape, activation(tape, made[0], m.activation), made[1])
        else:
            inner = gate(tape, m, made[0]) if m.gated else activation(tape, made[0], m.activation)
        made.clear()
        out = picked_product(tape, inner, last, down.name, hidden, each)
        del inner
        total = _weighted(tape, total, out, scores, places)
        del out, places
    turns = min(identities, MOST)
    rows = Dim(-(-tokens * m.experts_per_token * identities // (m.experts * max(1, turns))), "T*K/E")
    for _ in range(turns):
        places = tape.new((rows, 2), "int64", "token and choice of each row")
        states = index(tape, x, places, (rows, hidden), "gather tokens")
        total = _weighted(tape, total, states, scores, places)
        del states, places
    del mask, variables
    return total


def _weighted(tape: Tape, total: Value, out: Value, scores: Value, places: Storage) -> Value:
    """An expert's rows times their scores, put into the sum."""
    chosen = index(tape, scores, places, (out.shape[0], 1), "gather scores")
    weighted = mul(tape, out, chosen)
    del out, chosen
    return added(tape, total, cast(tape, weighted, total.dtype), places)


def picked_product(tape: Tape, x: Value, stack: Value, label: str, outputs: int, experts: int) -> Value:
    """``F.linear(x, stack[expert])``. A picked matrix is no leaf, so that autocast makes a copy that stays. Its
    gradient is put into zeros as large as the stack (``select_backward``), which are added to those of other experts.
    """
    whole, own, inputs = stack.shape, stack.dtype, x.shape[-1]
    narrow = tape.autocast or own
    copies = tape.new((experts, outputs, inputs), narrow, "autocast copies") if narrow != own else None
    x = cast(tape, x, narrow)
    out = tape.value((x.shape[0], outputs), narrow, label)
    nx, nw, x_shape = x.origin is not None, stack.origin is not None, x.shape
    kept = (x.storage if nw else None, (copies or stack.storage or SAVED_WEIGHT) if nx else None)

    def run(grad: Storage) -> list[Storage | None]:
        gw = tape.new((outputs, inputs), narrow, label + " dW") if nw else None
        gx = tape.new(x_shape, narrow, label + " dX") if nx else None
        wide = tape.new((outputs, inputs), own, "to backward") if nw and narrow != own else gw
        del gw
        zeros = tape.new(whole, own, "select backward") if nw else None
        del wide
        return [gx, zeros]

    return tape.record(out, (x, stack), run, saves_first=True, saves=kept)


def added(tape: Tape, total: Value, part: Value, places: Storage) -> Value:
    """``total.index_add_(0, places, part)``: keeps the places, and the part for its shape (derivatives.yaml)."""
    out = Value(total.storage, total.shape, total.dtype)
    return operator(tape, out, (total, part), [PASSED, "index_select"], saves=(places, part))
