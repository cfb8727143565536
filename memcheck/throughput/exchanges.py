"""What a layer's ranks exchange inside a micro-batch, in seconds that nothing hides: tensor, context, expert, pipeline.

What tensor parallelism exchanges is in ``tensor_parallel.py``; torchtitan's fp8 gathers in fp8, forward and backward
(torchao ``float8_tensor_parallel.py``). Ring attention passes keys and values on while it works on those at hand.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.record import Record
from memcheck.throughput.collectives import all_to_all, behind, gather, group, send
from memcheck.throughput.layer import Cost
from memcheck.throughput.rates import Rates
from memcheck.throughput.tensor_parallel import TensorWires, tensor_wires


class Wires(Record):
    """Seconds of one exchange of each kind, for one micro-batch of this job."""

    tensor: TensorWires
    """Of the hidden states between tensor-parallel ranks."""
    pipeline: float
    """Hidden states to the next stage."""
    hidden_routing: bool
    """Routing runs behind another micro-batch's computation."""
    ring: bool
    """Keys and values go round a ring."""


def wires(job: TrainingJob, hidden: int, item: int, rates: Rates) -> Wires:
    """The exchanges of a job whose hidden states have ``hidden`` channels of ``item`` bytes."""
    layout = job.layout
    tokens = job.micro_batch_size * -(-job.sequence_length // layout.context)
    size = float(tokens * hidden * item)
    pipeline = 0.0
    if layout.pipeline > 1:
        g = group(rates, layout.pipeline, layout.world_size // layout.pipeline)
        pipeline = send(g, size / layout.tensor if layout.sequence else size)
    hides = layout.pipeline_schedule == "dualpipe" and layout.pipeline > 1
    return Wires(
        tensor_wires(job, size, item, rates),
        pipeline,
        hides or bool(job.option("overlap_moe_expert_parallel_comm")),
        job.framework == "megatron" and job.option("cp_comm_type", "p2p") == "p2p",
    )


def context_seconds(job: TrainingJob, cost: Cost, ring: bool, rates: Rates) -> tuple[float, float]:
    """Forward and backward of one layer. Ulysses (DeepSpeed) turns four tensors from sequence to heads and back.

    torch gathers keys and values while it works on its own; in backward it sends their gradients on, in fp32, while it
    works on the next block, and waits for the last of them (``_context_parallel/_attention.py``,
    _templated_ring_attention_backward).
    """
    layout = job.layout
    if layout.context == 1 or not cost.kv_bytes:
        return 0.0, 0.0
    g = group(rates, layout.context, layout.tensor)
    if ring:
        steps = layout.context - 1
        forward = behind(steps * send(g, cost.kv_bytes), cost.attention_seconds, rates.taken)
        return forward, behind(steps * send(g, 2 * cost.kv_bytes), 2.5 * cost.attention_seconds, rates.taken)
    if job.framework == "deepspeed":
        both = 2 * all_to_all(g, 2 * cost.kv_bytes)
        return both, both
    one, block = gather(g, cost.kv_bytes * layout.context), cost.attention_seconds / layout.context
    summed = send(g, 4 / DTYPE_BYTES[job.recipe.compute] * cost.kv_bytes)
    hidden = (layout.context - 1) * behind(summed, 2.5 * block, rates.taken)
    return behind(one, block, rates.taken), behind(one, 2.5 * block, rates.taken) + hidden + summed


def expert_seconds(job: TrainingJob, cost: Cost, rates: Rates) -> float:
    """One way of routing, of one layer: to the ranks of the experts, then to all that share an expert's matrices.

    Megatron gathers the routed tokens over the expert-tensor group, and reduces and scatters what comes back
    (``moe/token_dispatcher.py``, MoEAlltoAllTokenDispatcher); its flex dispatcher sends each token to all of them.
    torchtitan's tensor ranks have all tokens, and each of them sends its own copy.
    """
    layout = job.layout
    if not cost.routed_bytes or layout.expert * layout.expert_tensor == 1:
        return 0.0
    sent = cost.routed_bytes * layout.expert_tensor
    if job.framework != "megatron":
        return all_to_all(group(rates, layout.expert, layout.expert_tensor), sent)
    if not _forwards(job):
        one = all_to_all(group(rates, layout.expert, layout.expert_tensor), cost.routed_bytes)
        return one + gather(group(rates, layout.expert_tensor, 1), sent)
    g = group(rates, layout.expert * layout.expert_tensor, 1)
    nodes = -(-g.ranks // g.local)
    copies = touched(nodes, cost.chosen, cost.groups, cost.chosen_groups) * (nodes - 1) / nodes
    return all_to_all(g, sent, cost.routed_bytes * copies / cost.chosen)


def _forwards(job: TrainingJob) -> bool:
    """Whether a token crosses to a node once for all its experts there: DeepEP (README, "NVLink and RDMA forwarding")
    and HybridEP, Megatron's flex dispatcher.
    """
    return job.framework == "megatron" and job.option("moe_token_dispatcher_type") == "flex"


@lru_cache(maxsize=256)
def touched(nodes: int, chosen: int, groups: int, chosen_groups: int) -> float:
    """Nodes that hold one of a token's ``chosen`` experts, on average over even routing.

    Routing limited to some groups of experts (DeepSeek-V3 report, section 2.1.2) reaches only the nodes of those.
    """
    reached = float(nodes)
    if chosen_groups < groups:
        if nodes >= groups:
            reached = chosen_groups * nodes / groups
        else:
            others = groups - groups // nodes
            reached = nodes * (1 - comb(others, chosen_groups) / comb(groups, chosen_groups))
    return reached * (1 - (1 - 1 / reached) ** chosen)
