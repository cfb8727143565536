"""A delta net over a context group: every rank gets some heads of all tokens, and gives its tokens of all heads back.

Sources: Megatron-core ``ssm/gated_delta_net/common.py`` (a2a_cp_to_hp, a2a_hp_to_cp), ``ssm/mamba_context_parallel.py``
(_undo_attention_load_balancing, _redo_attention_load_balancing) and ``tensor_parallel/mappings.py``
(all_to_all_sp2hp, all_to_all_hp2sp) at commit d98e8a64dd. Each step makes one tensor, and one of its gradient.
"""

from __future__ import annotations

from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Tape, Value


def to_heads(tape: Tape, x: Value, ways: int) -> Value:
    """[tokens of this rank, all heads] to [all tokens, heads of this rank]. The caller's variable holds ``x``."""
    ordered = _moved(tape, x, x.shape, "index_select of heads")
    shape = (x.shape[0] * ways, x.shape[1] // ways)
    apart = _moved(tape, ordered, x.shape, "cat of heads")
    exchanged = _moved(tape, apart, shape, "all-to-all")
    del apart
    return _moved(tape, exchanged, shape, "tokens in order")


def to_tokens(tape: Tape, x: Value, ways: int) -> Value:
    """[all tokens, heads of this rank] to [tokens of this rank, all heads]."""
    balanced = _moved(tape, x, x.shape, "tokens by rank")
    exchanged = _moved(tape, balanced, x.shape, "all-to-all")
    return _moved(tape, exchanged, (x.shape[0] // ways, x.shape[1] * ways), "cat of heads")


def _moved(tape: Tape, x: Value, shape: tuple[int, ...], label: str) -> Value:
    """Another order of the same elements; keeps nothing."""
    return operator(tape, tape.value(shape, x.dtype, label), x, label + " backward")
