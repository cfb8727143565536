"""What a layer's ranks exchange inside a micro-batch, in seconds that nothing hides: tensor, context, expert, pipeline.

What tensor parallelism exchanges is in ``tensor_parallel.py``; torchtitan's fp8 gathers in fp8, forward and backward
(torchao ``float8_tensor_parallel.py``).

The ranks that share a sequence exchange for attention, and attention hides some of it, by the kind of parallelism:

- ``engine``: Transformer Engine's ring (Megatron's ``cp_comm_type: p2p``). Keys and values are passed on while a
  block is multiplied, and their gradients with them (``dot_product_attention/context_parallel.py``,
  AttnFuncWithCPAndKVP2P).
- ``torch``: keys and values are gathered during the rank's own block; in backward their gradients go round in fp32,
  during the next block, and the last of them waits (``_context_parallel/_attention.py``,
  _templated_ring_attention_backward). Compiled, nothing is hidden: a traced collective is waited for where it starts
  (``torch/distributed/_functional_collectives.py``, _maybe_wrap_tensor), and Inductor does not move the wait
  (``torch/_inductor/config.py``, reorder_for_compute_comm_overlap = False).
- ``whole``: torchtitan's main branch gathers keys and values before attention, keeps them, and scatters the sum of
  their gradients (``models/common/decoder_sharding.py``, set_gqa_inner_attention_local_map); releases have the ring.
- ``ulysses``: four tensors are turned from parts of the sequence to parts of the heads, and back (DeepSpeed; Megatron's
  ``a2a``).
- ``gather``: keys and values are gathered before, once more in backward, and their gradients are scattered after it
  (Megatron's ``all_gather``; AttnFuncWithCPAndKVAllGather: "exposed").
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

from memcheck.autograd.tensor import ceil_div
from memcheck.frameworks.registry import timing_of
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.record import Record
from memcheck.timing.collectives import all_to_all, exposed, gather, group, send
from memcheck.timing.layer import LayerCost
from memcheck.timing.rates import Rates
from memcheck.timing.tensor_parallel import TensorWires, tensor_wires

ENGINE, ULYSSES, GATHER, WHOLE = "engine", "ulysses", "gather", "whole"


def context_kind(job: TrainingJob) -> str:
    """Return the kind of context parallelism that the job runs, as this module's docstring lists them; else empty."""
    return "" if job.layout.context == 1 else timing_of(job.framework).context(job)


def context_seconds(job: TrainingJob, cost: LayerCost, kind: str, rates: Rates) -> tuple[float, float]:
    """Compute the seconds of one layer's context-parallel exchanges, forward and backward, that attention does not
    hide.

    ``cost``: bytes of keys and values and seconds of attention in the layer. ``kind``: a ring, an all-gather or an
    all-to-all (Ulysses), as the docstring of this module lists them.
    """
    layout = job.layout
    if not kind or not cost.kv_bytes:
        return 0.0, 0.0
    links = group(rates, layout.context, layout.tensor)
    steps = layout.context - 1
    if kind == ENGINE:
        forward = exposed(steps * send(links, cost.kv_bytes), cost.attention_seconds, rates.collective_sm_share)
        ring = steps * send(links, 2 * cost.kv_bytes)  # keys and values, and their gradients with them
        return forward, exposed(ring, cost.attention_backward_seconds, rates.collective_sm_share)
    if kind == ULYSSES:  # q, k and v before attention and its output after it, about twice the keys' and values' bytes
        both_exchanges = 2 * all_to_all(links, 2 * cost.kv_bytes)
        return both_exchanges, both_exchanges
    gather_kv = gather(links, cost.kv_bytes * layout.context)
    block_forward = cost.attention_seconds / layout.context
    block_backward = cost.attention_backward_seconds / layout.context
    if kind in (GATHER, WHOLE):
        return gather_kv, 2 * gather_kv if kind == GATHER else gather_kv
    send_gradients = send(links, 4 / DTYPE_BYTES[job.recipe.compute] * cost.kv_bytes)  # in fp32
    if job.compile:  # compiled code waits for each exchange
        return gather_kv, gather_kv + layout.context * send_gradients
    sm_share = rates.collective_sm_share
    exposed_sends = steps * exposed(send_gradients, block_backward, sm_share)
    backward = exposed(gather_kv, block_backward, sm_share) + exposed_sends + send_gradients
    return exposed(gather_kv, block_forward, sm_share), backward


class Wires(Record):
    """Seconds of one exchange of each kind, for one micro-batch of this job."""

    tensor: TensorWires
    """Exchanges of hidden states between tensor-parallel ranks."""
    pipeline: float
    """Hidden states to the next stage."""
    overlaps_routing: bool
    """Routing overlaps another micro-batch's computation."""
    context: str
    """The kind of context parallelism that runs (``context.py``)."""


def wires_of(job: TrainingJob, hidden: int, item_bytes: int, rates: Rates) -> Wires:
    """Compute the seconds of one exchange of hidden states over tensor ranks, and over pipeline ranks.

    ``hidden``: channels of the hidden states. ``item_bytes``: bytes per element.
    """
    layout = job.layout
    tokens = job.rows * ceil_div(job.sequence_length, layout.context)
    size = float(tokens * hidden * item_bytes)
    pipeline = 0.0
    if layout.pipeline > 1:
        links = group(rates, layout.pipeline, layout.world_size // layout.pipeline)
        pipeline = send(links, size / layout.tensor if layout.sequence else size)
    hides = layout.pipeline_schedule == "dualpipe" and layout.pipeline > 1
    return Wires(
        tensor=tensor_wires(job, size, item_bytes, rates),
        pipeline=pipeline,
        overlaps_routing=hides or bool(job.option("overlap_moe_expert_parallel_comm")),
        context=context_kind(job),
    )


def expert_seconds(job: TrainingJob, cost: LayerCost, rates: Rates) -> float:
    """Compute the seconds of routing tokens in one direction in one layer: to the ranks of the experts, or back.

    Dispatchers: ``copies`` (torchtitan: each tensor rank has all tokens and sends its own copy), ``allgather``
    (Megatron's default: all ranks get all tokens, MoEAllGatherTokenDispatcher), ``alltoall`` (to the experts' ranks,
    then gathered over the expert-tensor group, MoEAlltoAllTokenDispatcher), ``flex`` (DeepEP: to all ranks of the
    experts, but only once to each node; README of deepseek-ai/DeepEP, "NVLink and RDMA forwarding").
    """
    layout = job.layout
    if not cost.routed_bytes or layout.expert * layout.expert_tensor == 1:
        return 0.0
    sent = cost.routed_bytes * layout.expert_tensor
    dispatch = timing_of(job.framework).dispatch(job)
    if dispatch == "copies":
        return all_to_all(group(rates, layout.expert, layout.expert_tensor), sent)
    if dispatch == "allgather":
        return _gathered(job, cost, rates)
    if dispatch == "alltoall":  # DeepEP and HybridEP send one copy to a node and pass it on inside
        to_experts = all_to_all(group(rates, layout.expert, layout.expert_tensor), cost.routed_bytes)
        return to_experts + gather(group(rates, layout.expert_tensor, 1), sent)
    links = group(rates, layout.expert * layout.expert_tensor, 1)
    nodes = ceil_div(links.ranks, links.local)
    copies = touched(nodes, cost.experts_per_token, cost.expert_groups, cost.chosen_groups) * (nodes - 1) / nodes
    return all_to_all(links, sent, cost.routed_bytes * copies / cost.experts_per_token)


def _gathered(job: TrainingJob, cost: LayerCost, rates: Rates) -> float:
    """Compute the mean seconds of Megatron's all-gather dispatch: gathering all tokens, and reduce-scattering results.

    Results have the dtype of the router's probabilities (token_combine: ``hidden_states.to(self.local_probs.dtype)``).
    """
    links = group(rates, job.layout.expert * job.layout.expert_tensor, 1)
    busiest = job.expert_imbalance if job.layout.expert > 1 else 1.0
    tokens = links.ranks * cost.routed_bytes / (cost.experts_per_token * busiest)
    wide = 4 / DTYPE_BYTES[job.recipe.compute] if job.option("moe_router_dtype") in ("fp32", "fp64") else 1.0
    return (gather(links, tokens) + gather(links, tokens * wide)) / 2


@lru_cache(maxsize=256)
def touched(nodes: int, chosen: int, groups: int, chosen_groups: int) -> float:
    """Compute the average number of nodes that hold one of a token's ``chosen`` experts, under even routing.

    ``nodes``: over which the experts are divided. Routing limited to ``chosen_groups`` of ``groups`` groups of experts
    (DeepSeek-V3 report, section 2.1.2) reaches only the nodes of these groups.
    """
    reached = float(nodes)  # nodes that the chosen groups are on
    if chosen_groups < groups:
        if nodes >= groups:
            reached = chosen_groups * nodes / groups
        else:
            unreached = groups - groups // nodes
            reached = nodes * (1 - comb(unreached, chosen_groups) / comb(groups, chosen_groups))
    return reached * (1 - (1 - 1 / reached) ** chosen)
