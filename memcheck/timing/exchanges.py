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
from memcheck.timing.layer import LayerCost
from memcheck.timing.rates import Rates, all_to_all, exposed, gather, group, send
from memcheck.timing.tensor_parallel import TensorWires, tensor_wires

ENGINE, ULYSSES, GATHER, WHOLE = "engine", "ulysses", "gather", "whole"


def context_kind(job: TrainingJob) -> str:
    """Return the kind of context parallelism that the job runs, as this module's docstring lists them; else empty."""
    return "" if job.layout.context == 1 else timing_of(job.framework).context_kind(job)


class ExposedSeconds(Record):
    """Seconds of exchanges that no computation hides, by pass."""

    forward: float = 0.0
    backward: float = 0.0


def context_seconds(job: TrainingJob, cost: LayerCost, kind: str, rates: Rates) -> ExposedSeconds:
    """Compute the seconds of one layer's context-parallel exchanges that attention does not hide.

    ``cost``: bytes of keys and values and seconds of attention in the layer. ``kind``: a ring, an all-gather or an
    all-to-all (Ulysses), as the docstring of this module lists them.
    """
    layout = job.layout
    if not kind or not cost.kv_bytes:
        return ExposedSeconds()
    links = group(rates, layout.context, layout.tensor)
    other_ranks, sm_share = layout.context - 1, rates.collective_sm_share
    if kind == ENGINE:
        ring_forward = other_ranks * send(links, cost.kv_bytes)
        ring_backward = other_ranks * send(links, 2 * cost.kv_bytes)  # keys and values with their gradients
        return ExposedSeconds(
            forward=exposed(ring_forward, cost.attention_seconds, sm_share),
            backward=exposed(ring_backward, cost.attention_backward_seconds, sm_share),
        )
    if kind == ULYSSES:  # q, k and v before attention and its output after it, about twice the keys' and values' bytes
        both_exchanges = 2 * all_to_all(links, 2 * cost.kv_bytes)
        return ExposedSeconds(both_exchanges, both_exchanges)
    gather_kv = gather(links, cost.kv_bytes * layout.context)
    if kind == GATHER:  # backward gathers once more, and scatters the gradients
        return ExposedSeconds(forward=gather_kv, backward=2 * gather_kv)
    if kind == WHOLE:
        return ExposedSeconds(forward=gather_kv, backward=gather_kv)
    return _torch_ring_seconds(job, cost, gather_kv, send(links, _fp32_bytes(job, cost.kv_bytes)), sm_share)


def _fp32_bytes(job: TrainingJob, size: float) -> float:
    """Return the bytes in fp32 of a tensor that has ``size`` bytes in the dtype of the activations."""
    return DTYPE_BYTES["fp32"] / DTYPE_BYTES[job.recipe.compute] * size


def _torch_ring_seconds(
    job: TrainingJob, cost: LayerCost, gather_kv: float, send_gradients: float, sm_share: float
) -> ExposedSeconds:
    """Compute the seconds of torch's ring attention in one layer that its blocks of attention do not hide.

    ``gather_kv``: seconds of gathering all keys and values. ``send_gradients``: seconds of passing their gradients on
    once. ``sm_share``: share of the multiprocessors that a collective occupies.
    """
    blocks = job.layout.context  # attention computes one block of keys and values per rank
    if job.compile:  # compiled code waits for each exchange
        return ExposedSeconds(forward=gather_kv, backward=gather_kv + blocks * send_gradients)
    block_forward = cost.attention_seconds / blocks
    block_backward = cost.attention_backward_seconds / blocks
    overlapped_sends = (blocks - 1) * exposed(send_gradients, block_backward, sm_share)
    last_send = send_gradients
    return ExposedSeconds(
        forward=exposed(gather_kv, block_forward, sm_share),
        backward=exposed(gather_kv, block_backward, sm_share) + overlapped_sends + last_send,
    )


class Wires(Record):
    """Seconds of one exchange of each kind, for one micro-batch of this job."""

    tensor: TensorWires
    """Exchanges of hidden states between tensor-parallel ranks."""
    pipeline_seconds: float
    """Hidden states to the next stage."""
    hides_routing: bool
    """Routing overlaps another micro-batch's computation."""
    context_kind: str
    """The kind of context parallelism that runs (``context.py``)."""


def wires_of(job: TrainingJob, hidden: int, item_bytes: int, rates: Rates) -> Wires:
    """Compute the seconds of one exchange of hidden states over tensor ranks, and over pipeline ranks.

    ``hidden``: channels of the hidden states. ``item_bytes``: bytes per element.
    """
    layout = job.layout
    tokens = job.rows * ceil_div(job.sequence_length, layout.context)
    hidden_bytes = float(tokens * hidden * item_bytes)
    pipeline = 0.0
    if layout.pipeline > 1:
        links = group(rates, layout.pipeline, layout.world_size // layout.pipeline)
        pipeline = send(links, hidden_bytes / layout.tensor if layout.sequence else hidden_bytes)
    is_dualpipe = layout.pipeline_schedule == "dualpipe" and layout.pipeline > 1
    return Wires(
        tensor=tensor_wires(job, hidden_bytes, item_bytes, rates),
        pipeline_seconds=pipeline,
        hides_routing=is_dualpipe or bool(job.option("overlap_moe_expert_parallel_comm")),
        context_kind=context_kind(job),
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
    copies_bytes = cost.routed_bytes * layout.expert_tensor  # every rank of an expert-tensor group needs each token
    dispatch = timing_of(job.framework).token_dispatch(job)
    if dispatch == "copies":
        return all_to_all(group(rates, layout.expert, layout.expert_tensor), copies_bytes)
    if dispatch == "allgather":
        return _gathered(job, cost, rates)
    if dispatch == "alltoall":
        to_experts = all_to_all(group(rates, layout.expert, layout.expert_tensor), cost.routed_bytes)
        return to_experts + gather(group(rates, layout.expert_tensor, 1), copies_bytes)
    # DeepEP and HybridEP send a token once to each node that has one of its experts, and pass it on inside
    links = group(rates, layout.expert * layout.expert_tensor, 1)
    nodes = ceil_div(links.ranks, links.ranks_in_node)
    nodes_per_token = touched(nodes, cost.experts_per_token, cost.expert_groups, cost.groups_per_token)
    other_nodes_per_token = nodes_per_token * (nodes - 1) / nodes
    return all_to_all(links, copies_bytes, cost.routed_bytes * other_nodes_per_token / cost.experts_per_token)


def _gathered(job: TrainingJob, cost: LayerCost, rates: Rates) -> float:
    """Compute the mean seconds of Megatron's all-gather dispatch: gathering all tokens, and reduce-scattering results.

    Results have the dtype of the router's probabilities (token_combine: ``hidden_states.to(self.local_probs.dtype)``).
    """
    links = group(rates, job.layout.expert * job.layout.expert_tensor, 1)
    # routed bytes count a token once for each of its experts, and on the busiest rank; gathered is every token once
    imbalance = job.expert_imbalance if job.layout.expert > 1 else 1.0
    token_bytes = links.ranks * cost.routed_bytes / (cost.experts_per_token * imbalance)
    fp32_results = job.option("moe_router_dtype") in ("fp32", "fp64")
    result_bytes = _fp32_bytes(job, token_bytes) if fp32_results else token_bytes
    return (gather(links, token_bytes) + gather(links, result_bytes)) / 2


@lru_cache(maxsize=256)
def touched(nodes: int, chosen: int, groups: int, chosen_groups: int) -> float:
    """Compute the average number of nodes that hold one of a token's ``chosen`` experts, under even routing.

    ``nodes``: over which the experts are divided. Routing limited to ``chosen_groups`` of ``groups`` groups of experts
    (DeepSeek-V3 report, section 2.1.2) reaches only the nodes of these groups.
    """
    reached = float(nodes)  # mean number of nodes that the chosen groups are on
    if chosen_groups < groups <= nodes:  # each group has nodes of its own
        reached = chosen_groups * nodes / groups
    elif chosen_groups < groups:  # each node has several groups
        groups_elsewhere = groups - groups // nodes
        node_not_reached = comb(groups_elsewhere, chosen_groups) / comb(groups, chosen_groups)
        reached = nodes * (1 - node_not_reached)
    no_expert_on_node = (1 - 1 / reached) ** chosen
    return reached * (1 - no_expert_on_node)
