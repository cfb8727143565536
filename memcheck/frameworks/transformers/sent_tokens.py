"""Tokens that a library sends to the ranks of their experts, as NeMo AutoModel has it done.

Sources: NVIDIA-NeMo/Automodel 36044ad3 ``components/moe/megatron/token_dispatcher.py`` (_DeepepManager,
_HybridEPManager, with fused permutation), ``fused_a2a.py`` (FusedDispatch, HybridEPDispatch), ``components/moe/
experts.py`` (GroupedExpertsDeepEP); deepseek-ai/DeepEP ``deep_ep/buffer.py``, and ``csrc/hybrid_ep/executor/
executor.cu`` of its branch hybrid-ep; Transformer Engine ``pytorch/permutation.py``.

Where tokens went is in a handle, an attribute of ctx and no saved tensor: it stays through checkpoints, and goes with
the graph.
"""

from __future__ import annotations

import math

from memcheck.accounts.deepep import NODE_RANKS
from memcheck.autograd.checkpoint import ctx_attribute
from memcheck.autograd.context import Context
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Dim, Storage, Tape, Value
from memcheck.frameworks.transformers.expert_parallel import choices_here, local_experts
from memcheck.frameworks.transformers.grouped_adapters import operands
from memcheck.models.types import Moe

Handle = tuple[Storage, ...]


def sent(ctx: Context, m: Moe, x: Value, weights: Value) -> Value:
    """DeepEP: a token travels once to each rank that has one of its experts; there it is copied for each of them."""
    tape, ways, k = ctx.tape, ctx.setting.expert, m.experts_per_token
    own, hidden = x.shape[0], x.shape[-1]
    reached = ways * (1 - (1 - 1 / ways) ** k)  # ranks that a token reaches, of evenly drawn experts
    received = Dim(math.ceil(own * reached * ctx.setting.expert_imbalance), "T*reached")
    local = -(-m.experts // ways)
    handle = _handle(tape, x.origin or weights.origin, *_places(tape, own, ways, k, received))
    arrived, probabilities = _dispatched(tape, x, weights, (received, k), handle)
    indices = tape.new((received, k), "int64", "received indices")
    chosen, multihot = _multihot(tape, probabilities, local)
    del indices, probabilities
    rows = choices_here(ctx, own * k)
    row_ids = tape.new((received, 2 * local + 1), "int32", "row id map")
    tokens, scores = _permuted(tape, arrived, multihot, rows, row_ids)
    del arrived, multihot
    named: list[Value] = []
    out = local_experts(ctx, m, tokens, scores, operands(ctx, m, x.dtype), named)
    del tokens, scores
    summed = _restored(tape, out, (received, hidden), row_ids)
    del chosen, row_ids
    return _moved(tape, summed, (own, hidden), handle)  # the module's forward has names for the rest until then


def sent_permuted(ctx: Context, m: Moe, x: Value, weights: Value) -> Value:
    """HybridEP: tokens arrive in buffers of its own, and leave them as rows sorted by expert."""
    tape, ways = ctx.tape, ctx.setting.expert
    own, hidden = x.shape[0], x.shape[-1]
    everyone, local = Dim(own * ways, "T*ep"), -(-m.experts // ways)
    routing, multihot = _multihot(tape, weights, m.experts)
    everywhere = tape.new((everyone, m.experts), "bool", "global routing map")
    handle = _handle(
        tape,
        x.origin or weights.origin,
        tape.new((own, ways), "int32", "sparse to dense map"),
        tape.new((everyone, local), "bool", "local expert routing map"),
        tape.new((everyone, local), "int32", "dense to expert map"),
    )
    del everywhere
    rows = choices_here(ctx, own * m.experts_per_token)
    tokens, scores = _dispatched(tape, x, multihot, (rows,), handle)
    del multihot
    named: list[Value] = []
    out = local_experts(ctx, m, tokens, scores, operands(ctx, m, x.dtype), named)
    del tokens, scores, routing
    return _moved(tape, out, (own, hidden), handle)


def _places(tape: Tape, own: int, ways: int, choices: int, received: int) -> list[Storage]:
    """The handle of ``Buffer.dispatch``: inside a node, or between nodes of eight ranks (``internode_dispatch``)."""
    found = [tape.new((own, ways), "bool", "is_token_in_rank")]
    if ways <= NODE_RANKS:
        return [*found, tape.new((own, ways), "int32", "send_head"), tape.new((received,), "int32", "recv_src_idx")]
    nodes = -(-ways // NODE_RANKS)
    passed = math.ceil(own * nodes * (1 - (1 - 1 / nodes) ** choices))  # tokens that this rank passes on in its node
    found.append(tape.new((own, nodes), "int32", "send_rdma_head"))
    found.append(tape.new((passed, NODE_RANKS), "int32", "send_nvl_head"))
    return [*found, tape.new((received, 2), "int32", "recv_src_meta")]


def _handle(tape: Tape, graph: object, *maps: Storage) -> Handle:
    """What both directions ask for, as an attribute of ctx where there is a graph."""
    if graph is None or not tape.grad_enabled:
        return ()
    return tuple(each for each in maps if ctx_attribute(tape, each) is not None)


def _dispatched(tape: Tape, x: Value, weights: Value, shape: tuple[int, ...], handle: Handle) -> tuple[Value, Value]:
    """Rows and their weights; backward brings the gradients of both home."""
    out = tape.value((shape[0], x.shape[-1]), x.dtype, "dispatched tokens")
    probabilities = tape.value(shape, "fp32", "dispatched weights")
    brought = (weights.shape, "fp32", "combined weights' gradient")
    out = operator(tape, out, (x, weights), ["combined gradient", brought], attributes=handle)
    return out, operator(tape, probabilities, weights, None)


def _multihot(tape: Tape, weights: Value, experts: int) -> tuple[Storage, Value]:
    """``IndicesToMultihot``: keeps where each weight went."""
    rows = weights.shape[0]
    chosen = tape.new((rows, experts), "bool", "routing map")
    out = tape.value((rows, experts), "fp32", "multihot weights")
    places = tape.new((rows, experts), "int32", "position map")
    return chosen, operator(tape, out, weights, (weights.shape, "fp32", "multihot backward"), saves=(places,))


def _permuted(tape: Tape, arrived: Value, multihot: Value, rows: Dim, row_ids: Storage) -> tuple[Value, Value]:
    """``moe_permute_with_probs``: keeps its map."""
    out = tape.value((rows, arrived.shape[-1]), arrived.dtype, "permuted tokens")
    scores = tape.value((rows,), "fp32", "permuted weights")
    out = operator(
        tape,
        out,
        (arrived, multihot),
        ["unpermuted gradient", (multihot.shape, "fp32", "weights' gradient")],
        saves=(row_ids,),
    )
    return out, operator(tape, scores, multihot, None)


def _restored(tape: Tape, x: Value, shape: tuple[int, ...], row_ids: Storage) -> Value:
    """``moe_unpermute``: the copies of a token are summed."""
    return operator(tape, tape.value(shape, x.dtype, "unpermuted tokens"), x, "permuted gradient", saves=(row_ids,))


def _moved(tape: Tape, x: Value, shape: tuple[int, ...], handle: Handle) -> Value:
    """``FusedCombine``: backward sends the gradient where the tokens went."""
    return operator(tape, tape.value(shape, x.dtype, "combined tokens"), x, "dispatched gradient", attributes=handle)
