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
    """Run local experts with DeepEP: each token travels once to every rank that has one of its experts.

    ``x``: [tokens, hidden]; so is what is returned. The receiving rank copies a token for each of its chosen experts.
    The module's variables and the handle live to the end of its forward.
    """
    tape, expert_ranks, experts_per_token = ctx.tape, ctx.setting.expert, m.experts_per_token
    local_tokens, hidden = x.shape[0], x.shape[-1]
    ranks_per_token = expert_ranks * (
        1 - (1 - 1 / expert_ranks) ** experts_per_token
    )  # ranks that a token reaches, of evenly drawn experts
    received = Dim(math.ceil(local_tokens * ranks_per_token * ctx.setting.expert_imbalance), "T*reached")
    experts_here = -(-m.experts // expert_ranks)
    handle = _handle(
        tape, x.origin or weights.origin, *_dispatch_maps(tape, local_tokens, expert_ranks, experts_per_token, received)
    )
    received_tokens, probabilities = _dispatch(tape, x, weights, (received, experts_per_token), handle)
    indices = tape.new((received, experts_per_token), "int64", "received indices")
    routing_map, multihot = _multihot(tape, probabilities, experts_here)
    del indices, probabilities
    rows = choices_here(ctx, local_tokens * experts_per_token)
    row_ids = tape.new((received, 2 * experts_here + 1), "int32", "row id map")
    tokens, scores = _permute(tape, received_tokens, multihot, rows, row_ids)
    del received_tokens, multihot
    module_variables: list[Value] = []
    out = local_experts(ctx, m, tokens, scores, operands(ctx, m, x.dtype), module_variables)
    del tokens, scores
    summed = _unpermute(tape, out, (received, hidden), row_ids)
    del routing_map, row_ids
    return _combine(
        tape, summed, (local_tokens, hidden), handle
    )  # the module's forward has names for the rest until then


def sent_permuted(ctx: Context, m: Moe, x: Value, weights: Value) -> Value:
    """Run local experts with HybridEP: tokens arrive in its own buffers, and leave them as rows sorted by expert.

    ``x``: [tokens, hidden]; so is what is returned.
    """
    tape, expert_ranks = ctx.tape, ctx.setting.expert
    local_tokens, hidden = x.shape[0], x.shape[-1]
    all_tokens, experts_here = Dim(local_tokens * expert_ranks, "T*ep"), -(-m.experts // expert_ranks)
    routing, multihot = _multihot(tape, weights, m.experts)
    global_routing_map = tape.new((all_tokens, m.experts), "bool", "global routing map")
    handle = _handle(
        tape,
        x.origin or weights.origin,
        tape.new((local_tokens, expert_ranks), "int32", "sparse to dense map"),
        tape.new((all_tokens, experts_here), "bool", "local expert routing map"),
        tape.new((all_tokens, experts_here), "int32", "dense to expert map"),
    )
    del global_routing_map
    rows = choices_here(ctx, local_tokens * m.experts_per_token)
    tokens, scores = _dispatch(tape, x, multihot, (rows,), handle)
    del multihot
    module_variables: list[Value] = []
    out = local_experts(ctx, m, tokens, scores, operands(ctx, m, x.dtype), module_variables)
    del tokens, scores, routing
    return _combine(tape, out, (local_tokens, hidden), handle)


def _dispatch_maps(tape: Tape, local_tokens: int, expert_ranks: int, choices: int, received: int) -> list[Storage]:
    """Make the handle of ``Buffer.dispatch``: maps within a node, or between nodes of eight ranks
    (``internode_dispatch``).
    """
    maps = [tape.new((local_tokens, expert_ranks), "bool", "is_token_in_rank")]
    if expert_ranks <= NODE_RANKS:
        return [
            *maps,
            tape.new((local_tokens, expert_ranks), "int32", "send_head"),
            tape.new((received,), "int32", "recv_src_idx"),
        ]
    nodes = -(-expert_ranks // NODE_RANKS)
    forwarded = math.ceil(
        local_tokens * nodes * (1 - (1 - 1 / nodes) ** choices)
    )  # tokens that this rank forwards within its node
    maps.append(tape.new((local_tokens, nodes), "int32", "send_rdma_head"))
    maps.append(tape.new((forwarded, NODE_RANKS), "int32", "send_nvl_head"))
    return [*maps, tape.new((received, 2), "int32", "recv_src_meta")]


def _handle(tape: Tape, graph: object, *maps: Storage) -> Handle:
    """Keep the maps that dispatch and combine need as an attribute of ctx, if there is a graph."""
    if graph is None or not tape.grad_enabled:
        return ()
    return tuple(storage for storage in maps if ctx_attribute(tape, storage) is not None)


def _dispatch(tape: Tape, x: Value, weights: Value, shape: tuple[int, ...], handle: Handle) -> tuple[Value, Value]:
    """Send rows and their routing weights to the experts' ranks; backward combines both gradients."""
    out = tape.value((shape[0], x.shape[-1]), x.dtype, "dispatched tokens")
    probabilities = tape.value(shape, "fp32", "dispatched weights")
    weights_grad = (weights.shape, "fp32", "combined weights' gradient")
    out = operator(tape, out, (x, weights), ["combined gradient", weights_grad], attributes=handle)
    return out, operator(tape, probabilities, weights, None)


def _multihot(tape: Tape, weights: Value, experts: int) -> tuple[Storage, Value]:
    """Replay ``IndicesToMultihot``: weights [tokens, experts] and the routing map; autograd keeps the positions."""
    rows = weights.shape[0]
    routing_map = tape.new((rows, experts), "bool", "routing map")
    out = tape.value((rows, experts), "fp32", "multihot weights")
    positions = tape.new((rows, experts), "int32", "position map")
    return routing_map, operator(tape, out, weights, (weights.shape, "fp32", "multihot backward"), saves=(positions,))


def _permute(tape: Tape, received_tokens: Value, multihot: Value, rows: Dim, row_ids: Storage) -> tuple[Value, Value]:
    """Replay ``moe_permute_with_probs``: rows sorted by expert and their weights; autograd keeps the row map."""
    out = tape.value((rows, received_tokens.shape[-1]), received_tokens.dtype, "permuted tokens")
    scores = tape.value((rows,), "fp32", "permuted weights")
    out = operator(
        tape,
        out,
        (received_tokens, multihot),
        ["unpermuted gradient", (multihot.shape, "fp32", "weights' gradient")],
        saves=(row_ids,),
    )
    return out, operator(tape, scores, multihot, None)


def _unpermute(tape: Tape, x: Value, shape: tuple[int, ...], row_ids: Storage) -> Value:
    """Replay ``moe_unpermute``: the copies of a token are summed, to [received tokens, hidden]."""
    return operator(tape, tape.value(shape, x.dtype, "unpermuted tokens"), x, "permuted gradient", saves=(row_ids,))


def _combine(tape: Tape, x: Value, shape: tuple[int, ...], handle: Handle) -> Value:
    """Replay ``FusedCombine``: tokens return to their rank; backward dispatches the gradient again."""
    return operator(tape, tape.value(shape, x.dtype, "combined tokens"), x, "dispatched gradient", attributes=handle)
