"""One pipeline rank working on one micro-batch.

A pipeline adds ranks that wait for others, and hidden states on their way.

Sources: Narayanan et al. 2021, section 2.2 (1F1B and its interleaved form: the bubble divided by the virtual stages);
Qi et al. 2023, table 2 (ZB-H1: (p - 1)(F + B - 2 W)); the README of deepseek-ai/DualPipe: (S / 2 - 1)(F&B + B - 3 W)
over S stages. torch runs DualPipeV, whose p ranks have S = 2 p stages of half the length: (p - 1) / 2 in whole ranks.
F, B and W are one micro-batch's forward, backward and weight-gradient times.
"""

from __future__ import annotations

from memcheck.job.types import Layout, TrainingJob
from memcheck.record import Record
from memcheck.timing.data_parallel import Copies, ExchangedBytes, gather_seconds, reduce_seconds
from memcheck.timing.exchanges import Wires, context_seconds, expert_seconds
from memcheck.timing.layer import LayerCost
from memcheck.timing.model import ModelCost, Stage
from memcheck.timing.rates import CHANNELS, Rates, exposed
from memcheck.timing.tensor_parallel import tensor_seconds

FSDP_COPY_BYTES = 4.0
"""Per gathered parameter: out of the flat buffer into its own tensor (read 2, write 2)."""
FSDP_REDUCE_BYTES = 6.0
"""Per gradient: into the flat buffer, in the reduce dtype (read 2, write 4)."""
ROUTING = 20
"""Multiprocessors of an all-to-all that overlaps computation (Megatron ``moe_deepep_num_sms``; DeepSeek-V3 report,
3.2.2).
"""


PREDICTION_PAIRS = 4
"""Gather and reduce-scatter pairs of a multi-token-prediction layer in tensor parallelism, in addition to those of its
transformer layer: two for the input of twice the width, one for the result, one for the logits."""


class Layer(Record):
    """Seconds of one layer and micro-batch on one rank, with the exchanges that no computation hides."""

    arithmetic: float
    """Seconds of forward, backward and recompute in operations that arithmetic bounds."""
    memory: float
    """Seconds of forward, backward and recompute in operations that memory traffic bounds."""
    weights: float
    """Gradients of the weights, which zero-bubble schedules move into the bubble."""
    tensor: float
    """Exposed by tensor-parallel exchanges."""
    context: float
    """Exposed by context-parallel exchanges."""
    expert: float
    """Exposed by routing tokens to experts and back."""
    data: float
    """Exposed by gathering and reducing in every micro-batch (stage 3)."""
    last_data: float
    """Added in the micro-batch that reduces, where not all do."""


class StageTime(Record):
    """Seconds of one micro-batch on one pipeline rank, without the pipeline's bubble and sends, and its parameters."""

    arithmetic: float
    """Operations that arithmetic bounds."""
    memory: float
    """Operations that memory traffic bounds."""
    weights: float
    """Gradients of the weights, which zero-bubble schedules move into the bubble; among the two above."""
    tensor: float
    """Exposed by tensor-parallel exchanges."""
    context: float
    """Exposed by context-parallel exchanges."""
    expert: float
    """Exposed by routing tokens to experts and back."""
    data: float
    """Exposed by FSDP's gathers and reductions in every micro-batch (stage 3)."""
    last_data: float
    """Added in the micro-batch that reduces, where not all do."""
    dense: int
    """Parameters of the rank outside experts, before FSDP shards them."""
    dense_trained: int
    """Dense parameters that get gradients."""
    experts: int
    """Parameters of experts of the rank, before FSDP shards them."""
    experts_trained: int
    """Parameters of experts that get gradients."""

    @property
    def seconds(self) -> float:
        """Seconds of one micro-batch: computation, memory traffic and exposed exchanges."""
        return self.arithmetic + self.memory + self.tensor + self.context + self.expert + self.data


class Sharing(Record):
    """How data-parallel ranks share parameters and gradients: the same for every layer."""

    dense: Copies
    """The groups that share parameters outside experts."""
    experts: Copies
    """The groups that share one expert."""
    precision: ExchangedBytes
    """Bytes per element on the wire, and the ZeRO stage."""
    reshards: bool
    """Parameters are freed after forward and gathered again for backward (``reshard_after_forward``)."""
    gathers: bool
    """Every micro-batch gathers parameters."""
    reduces: bool
    """Every micro-batch reduces gradients."""
    padding: float
    """Factor by which padding enlarges the exchanged parameters of experts."""


def layer_time(
    job: TrainingJob, cost: LayerCost, wires: Wires, recomputed_share: float, sharing: Sharing, rates: Rates
) -> Layer:
    """Compute the seconds of one layer and micro-batch, forward and backward: computation, and exchanges not hidden.

    ``cost``: the layer's work. ``wires``: seconds of single exchanges. ``recomputed_share``: the share of such layers
    that are recomputed, 0 to 1. ``sharing``: how data-parallel ranks share parameters.
    """
    layout = job.layout
    arithmetic = cost.forward.arithmetic + cost.input_gradients.arithmetic + cost.weight_gradients.arithmetic
    arithmetic += recomputed_share * cost.recomputed.arithmetic
    memory = cost.forward.memory + cost.input_gradients.memory + cost.weight_gradients.memory
    memory += recomputed_share * cost.recomputed.memory
    tensor = context = expert = 0.0
    if layout.tensor > 1:
        tensor = tensor_seconds(wires.tensor, cost.halves, cost.exchanges, recomputed_share * cost.recomputed_exchanges)
    if layout.context > 1:
        exchange = context_seconds(job, cost, wires.context, rates)
        forward_passes = 1 + (recomputed_share if cost.recomputed_attention else 0.0)
        context = exchange.forward * forward_passes + exchange.backward
    if layout.expert * layout.expert_tensor > 1 and cost.routed_bytes:
        # each pass routes tokens to the experts and back: forward, backward, and the recompute if that routes again
        passes = 2 + (recomputed_share if cost.recomputed_routed else 0.0)
        expert = expert_seconds(job, cost, rates) * 2 * passes
        if wires.overlaps_routing:
            expert = exposed(expert, arithmetic + memory, ROUTING * rates.collective_sm_share / CHANNELS)
    fsdp = ExposedFsdp()
    if sharing.precision.stage == 3:
        memory += _fsdp_copy_bytes(cost, sharing) / rates.hbm_bandwidth
        forward = cost.forward.arithmetic + cost.forward.memory
        backward = arithmetic + memory - forward
        fsdp = _exposed_fsdp(cost, forward, backward, sharing, rates.collective_sm_share)
    return Layer(
        arithmetic=arithmetic,
        memory=memory,
        weights=sum(cost.weight_gradients),
        tensor=tensor,
        context=context,
        expert=expert,
        data=fsdp.every,
        last_data=fsdp.last,
    )


def _fsdp_copy_bytes(cost: LayerCost, sharing: Sharing) -> float:
    """Count the bytes that FSDP moves on one GPU around its collectives, for one layer and micro-batch.

    Gathered parameters are copied out of a flat buffer, and gradients into one.
    """
    bytes_moved = 0.0
    if sharing.gathers:
        parameters = cost.dense_parameters + cost.expert_parameters * sharing.padding
        copies = 2 if sharing.reshards else 1  # in forward, and again in backward
        bytes_moved += FSDP_COPY_BYTES * copies * parameters
    if sharing.reduces:
        trained = cost.trained_dense_parameters + cost.trained_expert_parameters * sharing.padding
        bytes_moved += FSDP_REDUCE_BYTES * trained
    return bytes_moved


class ExposedFsdp(Record):
    """Seconds of one layer's gathers and reductions that no computation hides."""

    every: float = 0.0
    """In every micro-batch."""
    last: float = 0.0
    """In addition, in the last micro-batch, where that alone reduces gradients."""


def _exposed_fsdp(
    cost: LayerCost, forward: float, backward: float, sharing: Sharing, collective_sm_share: float
) -> ExposedFsdp:
    """Compute the seconds of FSDP's gathers and reductions of one layer that no computation hides.

    FSDP gathers the next layer while one computes: only what takes longer than the computation is exposed. ``forward``,
    ``backward``: seconds of the layer's computation. ``collective_sm_share``: share of the multiprocessors that NCCL
    uses.
    """
    gather = gather_seconds(sharing.dense, cost.dense_parameters, sharing.precision)
    gather += gather_seconds(sharing.experts, cost.expert_parameters * sharing.padding, sharing.precision)
    reduce = reduce_seconds(sharing.dense, cost.trained_dense_parameters, sharing.precision)
    reduce += reduce_seconds(sharing.experts, cost.trained_expert_parameters * sharing.padding, sharing.precision)
    in_forward = exposed(gather, forward, collective_sm_share) if sharing.gathers else 0.0
    regather = gather if sharing.gathers and sharing.reshards else 0.0
    without_reduce = exposed(regather, backward, collective_sm_share)
    with_reduce = exposed(regather + reduce, backward, collective_sm_share)
    if sharing.reduces:
        return ExposedFsdp(every=in_forward + with_reduce)
    return ExposedFsdp(every=in_forward + without_reduce, last=with_reduce - without_reduce)


def stage_time(
    stage: Stage, layers: list[Layer], model_cost: ModelCost, wires: Wires, rates: Rates, sharing: Sharing
) -> StageTime:
    """Add up the seconds and parameters of a pipeline stage for one micro-batch: its layers, and the ends that it has.

    ``stage``: numbers of layers of each kind, and whether it has embedding and head. ``layers``: seconds of a layer of
    each kind. ``model_cost``: parameters of the layers, and work of the head. ``wires``: seconds of single exchanges.
    """
    arithmetic = memory = weights = tensor = context = expert = data = last = 0.0
    dense = dense_trained = experts = experts_trained = 0
    for count, layer, cost in zip(stage.layers, layers, model_cost.costs, strict=True):
        if not count:
            continue
        arithmetic += count * layer.arithmetic
        memory += count * layer.memory
        weights += count * layer.weights
        tensor += count * layer.tensor
        context += count * layer.context
        expert += count * layer.expert
        data += count * layer.data
        last += count * layer.last_data
        dense += count * cost.dense_parameters
        dense_trained += count * cost.trained_dense_parameters
        experts += count * cost.expert_parameters
        experts_trained += count * cost.trained_expert_parameters
    head = model_cost.head
    ends = ends_trained = 0
    if stage.head:
        arithmetic += head.forward.arithmetic + head.backward.arithmetic + head.recomputed.arithmetic
        memory += head.forward.memory + head.backward.memory + head.recomputed.memory
        ends += head.head
        ends_trained += head.head if head.head_trained else 0
    if stage.predictions:  # each layer has its own product before it, and its logits and loss after it
        predictions = stage.predictions
        work = (head.forward, head.backward, head.recomputed, head.mtp_projection)
        arithmetic += predictions * sum([tally.arithmetic for tally in work])
        memory += predictions * sum([tally.memory for tally in work])
        tensor += predictions * PREDICTION_PAIRS * wires.tensor.pair
        dense += predictions * head.mtp_projection_parameters
        dense_trained += predictions * head.mtp_projection_parameters
    if stage.embedding or stage.predictions:  # prediction needs the embedding where it runs
        ends += head.embedding
        ends_trained += head.embedding if head.embedding_trained else 0
    if ends:
        tensor += wires.tensor.pair * [stage.head, stage.embedding].count(True)
        if sharing.precision.stage == 3:  # no computation overlaps the first gather and the last reduction
            data += gather_seconds(sharing.dense, ends, sharing.precision) if sharing.gathers else 0.0
            reduce = reduce_seconds(sharing.dense, ends_trained, sharing.precision)
            if sharing.reduces:
                data += reduce
            else:
                last += reduce
    return StageTime(
        arithmetic=arithmetic,
        memory=memory,
        weights=weights,
        tensor=tensor,
        context=context,
        expert=expert,
        data=data,
        last_data=last,
        dense=dense + ends,
        dense_trained=dense_trained + ends_trained,
        experts=experts,
        experts_trained=experts_trained,
    )


def bubble_seconds(
    layout: Layout, micro_batches: int, stages: tuple[Stage, ...], times: list[StageTime], slowest: StageTime
) -> float:
    """Compute the seconds of one step in which the slowest pipeline rank has no work (the pipeline bubble).

    It is one micro-batch of every other rank, less what the schedule fills. ``times``: seconds of a micro-batch on each
    of the ``stages``. Zero-bubble schedules fill the bubble with the rank's weight gradients, one per micro-batch.
    DualPipe needs two micro-batches per rank to feed both ends (torch's ScheduleDualPipeV refuses fewer); with fewer it
    is estimated as zero-bubble.
    """
    ranks = layout.pipeline
    if ranks == 1:
        return 0.0
    other_ranks = sum(stage.ranks * time.seconds for stage, time in zip(stages, times, strict=True)) - slowest.seconds
    schedule = layout.pipeline_schedule
    if schedule == "interleaved-1f1b":
        return other_ranks / layout.virtual_stages
    if schedule == "dualpipe" and micro_batches >= 2 * ranks:
        # (p - 1) / 2 bubbles of F&B + B - 3 W: the last row of the table in the README of deepseek-ai/DualPipe
        bubbles = (ranks - 1) / 2
        mean_other_rank = other_ranks / (ranks - 1)
        return max(0.0, bubbles * (mean_other_rank - 3 * slowest.weights))
    if schedule in ("zero-bubble", "dualpipe"):
        # ZB-H1, (p - 1)(F + B - 2 W): at most two weight gradients fill the bubble of each other rank
        filling = min(2 * (ranks - 1), micro_batches)
        return max(0.0, other_ranks - filling * slowest.weights)
    return other_ranks


def pipeline_seconds(layout: Layout, micro_batches: int, send: float) -> float:
    """Compute the seconds of sending hidden states to the next rank and gradients back, as far as nothing hides them.

    ``send``: seconds of one send. Every micro-batch waits for both under GPipe and 1F1B. Interleaved and bidirectional
    schedules overlap the sends with another chunk's computation, except the first and last ones.
    """
    if layout.pipeline == 1:
        return 0.0
    both_ways = 2 * send  # hidden states in forward, their gradients in backward
    first_and_last = both_ways * (layout.pipeline - 1)
    if layout.pipeline_schedule in ("gpipe", "1f1b"):
        return first_and_last + both_ways * micro_batches
    return first_and_last
