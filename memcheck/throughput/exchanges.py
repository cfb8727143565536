"""What a layer's ranks exchange inside a micro-batch, in seconds that nothing hides: tensor, context, expert, pipeline.

Tensor parallelism gathers and reduces hidden states between products that need them, so nothing runs meanwhile, unless
the products are cut into chunks (torch's async tensor parallelism, Transformer Engine's ``tp_comm_overlap``): then the
first chunk alone is waited for. Ring attention passes keys and values on while it works on those at hand.
"""

from __future__ import annotations

from memcheck.job.types import TrainingJob
from memcheck.record import Record
from memcheck.throughput.collectives import all_reduce, all_to_all, gather, group, send
from memcheck.throughput.layer import Cost
from memcheck.throughput.rates import Rates


class Wires(Record):
    """Seconds of one exchange of each kind, for one micro-batch of this job."""

    tensor: float
    """One pair of gather and reduce-scatter (or one all-reduce) of the hidden states."""
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
    tensor = pipeline = 0.0
    if layout.tensor > 1:
        g = group(rates, layout.tensor, 1)
        tensor = 2 * gather(g, size) if layout.sequence else all_reduce(g, size)
        if job.option("tp_comm_overlap") or job.option("enable_async_tensor_parallel"):
            tensor /= layout.tensor
    if layout.pipeline > 1:
        g = group(rates, layout.pipeline, layout.world_size // layout.pipeline)
        pipeline = send(g, size / layout.tensor if layout.sequence else size)
    hides = layout.pipeline_schedule == "dualpipe" and layout.pipeline > 1
    return Wires(
        tensor,
        pipeline,
        hides or bool(job.option("overlap_moe_expert_parallel_comm")),
        job.framework == "megatron" and job.option("cp_comm_type", "p2p") == "p2p",
    )


def context_seconds(job: TrainingJob, cost: Cost, ring: bool, rates: Rates) -> tuple[float, float]:
    """Forward and backward of one layer: torch gathers keys and values and reduces their gradients; Ulysses
    (DeepSpeed) turns four tensors from sequence to heads and back.
    """
    layout = job.layout
    if layout.context == 1 or not cost.kv_bytes:
        return 0.0, 0.0
    g = group(rates, layout.context, layout.tensor)
    if ring:
        steps = layout.context - 1
        forward = steps * send(g, cost.kv_bytes) - cost.attention_seconds
        backward = steps * send(g, 2 * cost.kv_bytes) - 2.5 * cost.attention_seconds
        return max(0.0, forward), max(0.0, backward)
    if job.framework == "deepspeed":
        both = 2 * all_to_all(g, 2 * cost.kv_bytes)
        return both, both
    one = gather(g, cost.kv_bytes * layout.context)
    return one, 2 * one


def expert_seconds(job: TrainingJob, cost: Cost, rates: Rates) -> float:
    """One way of routing, of one layer."""
    layout = job.layout
    if layout.expert == 1 or not cost.routed_bytes:
        return 0.0
    return all_to_all(group(rates, layout.expert, layout.expert_tensor), cost.routed_bytes)
