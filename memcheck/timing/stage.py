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
from memcheck.timing.model import HeadCost, Stage
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


class PartTime(Record):
    """Seconds of one micro-batch in a layer, in another part of a model, or in a pipeline stage, and its parameters.

    They are one rank's, without the pipeline's bubble and sends.
    """

    arithmetic_seconds: float = 0.0
    """Seconds of the operations that arithmetic bounds: forward, backward and recompute."""
    memory_seconds: float = 0.0
    """Seconds of the operations that memory traffic bounds."""
    weight_gradient_seconds: float = 0.0
    """Gradients of the weights, which zero-bubble schedules move into the bubble; among the two above."""
    exposed_tensor_seconds: float = 0.0
    """Exposed by tensor-parallel exchanges."""
    exposed_context_seconds: float = 0.0
    """Exposed by context-parallel exchanges."""
    exposed_expert_seconds: float = 0.0
    """Exposed by routing tokens to experts and back."""
    exposed_data_seconds: float = 0.0
    """Exposed by FSDP's gathers and reductions in every micro-batch (stage 3)."""
    last_exposed_data_seconds: float = 0.0
    """Added in the micro-batch that reduces, where not all do."""
    dense_parameters: float = 0
    """Parameters outside experts, before FSDP shards them."""
    trained_dense_parameters: float = 0
    """Dense parameters that get gradients."""
    expert_parameters: float = 0
    """Parameters of experts, before FSDP shards them."""
    trained_expert_parameters: float = 0
    """Parameters of experts that get gradients."""

    def times(self, count: int) -> PartTime:
        """Return the sum over ``count`` equal parts."""
        return PartTime(*[count * value for value in self])

    @property
    def seconds(self) -> float:
        """Seconds of one micro-batch: computation, memory traffic and exposed exchanges."""
        return (
            self.arithmetic_seconds
            + self.memory_seconds
            + self.exposed_tensor_seconds
            + self.exposed_context_seconds
            + self.exposed_expert_seconds
            + self.exposed_data_seconds
        )


class Sharing(Record):
    """How data-parallel ranks share parameters and gradients: the same for every layer."""

    dense_copies: Copies
    """The groups that share parameters outside experts."""
    expert_copies: Copies
    """The groups that share one expert."""
    item_bytes: ExchangedBytes
    """Bytes per element on the wire, and the ZeRO stage."""
    reshards: bool
    """Parameters are freed after forward and gathered again for backward (``reshard_after_forward``)."""
    gathers_every_micro_batch: bool
    """Every micro-batch gathers parameters."""
    reduces_every_micro_batch: bool
    """Every micro-batch reduces gradients."""
    expert_padding_factor: float
    """Factor by which padding enlarges the exchanged parameters of experts."""


def layer_time(
    job: TrainingJob, cost: LayerCost, wires: Wires, recomputed_share: float, sharing: Sharing, rates: Rates
) -> PartTime:
    """Compute the seconds of one layer and micro-batch, forward and backward: computation, and exchanges not hidden.

    ``cost``: the layer's work. ``wires``: seconds of single exchanges. ``recomputed_share``: the share of such layers
    that are recomputed, 0 to 1. ``sharing``: how data-parallel ranks share parameters.
    """
    layout = job.layout
    arithmetic = (
        cost.forward.arithmetic_seconds
        + cost.input_gradients.arithmetic_seconds
        + cost.weight_gradients.arithmetic_seconds
    )
    arithmetic += recomputed_share * cost.recomputed.arithmetic_seconds
    memory = cost.forward.memory_seconds + cost.input_gradients.memory_seconds + cost.weight_gradients.memory_seconds
    memory += recomputed_share * cost.recomputed.memory_seconds
    tensor = context = expert = 0.0
    if layout.tensor > 1:
        tensor = tensor_seconds(
            wires.tensor, cost.halves, cost.tensor_exchanges, recomputed_share * cost.recomputed_tensor_exchanges
        )
    if layout.context > 1:
        exchange = context_seconds(job, cost, wires.context_kind, rates)
        forward_passes = 1 + (recomputed_share if cost.recomputes_attention else 0.0)
        context = exchange.forward * forward_passes + exchange.backward
    if layout.expert * layout.expert_tensor > 1 and cost.routed_bytes:
        # each pass routes tokens to the experts and back: forward, backward, and the recompute if that routes again
        passes = 2 + (recomputed_share if cost.recomputes_routing else 0.0)
        expert = expert_seconds(job, cost, rates) * 2 * passes
        if wires.hides_routing:
            expert = exposed(expert, arithmetic + memory, ROUTING * rates.collective_sm_share / CHANNELS)
    fsdp = ExposedFsdp()
    if sharing.item_bytes.zero_stage == 3:
        memory += _fsdp_copy_bytes(cost, sharing) / rates.hbm_bandwidth
        forward = cost.forward.arithmetic_seconds + cost.forward.memory_seconds
        backward = arithmetic + memory - forward
        fsdp = _exposed_fsdp(cost, forward, backward, sharing, rates.collective_sm_share)
    return PartTime(
        arithmetic_seconds=arithmetic,
        memory_seconds=memory,
        weight_gradient_seconds=sum(cost.weight_gradients),
        exposed_tensor_seconds=tensor,
        exposed_context_seconds=context,
        exposed_expert_seconds=expert,
        exposed_data_seconds=fsdp.every_micro_batch,
        last_exposed_data_seconds=fsdp.last_micro_batch,
        dense_parameters=cost.dense_parameters,
        trained_dense_parameters=cost.trained_dense_parameters,
        expert_parameters=cost.expert_parameters,
        trained_expert_parameters=cost.trained_expert_parameters,
    )


def _fsdp_copy_bytes(cost: LayerCost, sharing: Sharing) -> float:
    """Count the bytes that FSDP moves on one GPU around its collectives, for one layer and micro-batch.

    Gathered parameters are copied out of a flat buffer, and gradients into one.
    """
    bytes_moved = 0.0
    if sharing.gathers_every_micro_batch:
        parameters = cost.dense_parameters + cost.expert_parameters * sharing.expert_padding_factor
        copies = 2 if sharing.reshards else 1  # in forward, and again in backward
        bytes_moved += FSDP_COPY_BYTES * copies * parameters
    if sharing.reduces_every_micro_batch:
        trained = cost.trained_dense_parameters + cost.trained_expert_parameters * sharing.expert_padding_factor
        bytes_moved += FSDP_REDUCE_BYTES * trained
    return bytes_moved


class ExposedFsdp(Record):
    """Seconds of one layer's gathers and reductions that no computation hides."""

    every_micro_batch: float = 0.0
    """In every micro-batch."""
    last_micro_batch: float = 0.0
    """In addition, in the last micro-batch, where that alone reduces gradients."""


def _exposed_fsdp(
    cost: LayerCost, forward: float, backward: float, sharing: Sharing, collective_sm_share: float
) -> ExposedFsdp:
    """Compute the seconds of FSDP's gathers and reductions of one layer that no computation hides.

    FSDP gathers the next layer while one computes: only what takes longer than the computation is exposed. ``forward``,
    ``backward``: seconds of the layer's computation. ``collective_sm_share``: share of the multiprocessors that NCCL
    uses.
    """
    gather = gather_seconds(sharing.dense_copies, cost.dense_parameters, sharing.item_bytes)
    gather += gather_seconds(
        sharing.expert_copies, cost.expert_parameters * sharing.expert_padding_factor, sharing.item_bytes
    )
    reduce = reduce_seconds(sharing.dense_copies, cost.trained_dense_parameters, sharing.item_bytes)
    reduce += reduce_seconds(
        sharing.expert_copies, cost.trained_expert_parameters * sharing.expert_padding_factor, sharing.item_bytes
    )
    in_forward = exposed(gather, forward, collective_sm_share) if sharing.gathers_every_micro_batch else 0.0
    regather = gather if sharing.gathers_every_micro_batch and sharing.reshards else 0.0
    without_reduce = exposed(regather, backward, collective_sm_share)
    with_reduce = exposed(regather + reduce, backward, collective_sm_share)
    if sharing.reduces_every_micro_batch:
        return ExposedFsdp(every_micro_batch=in_forward + with_reduce)
    return ExposedFsdp(every_micro_batch=in_forward + without_reduce, last_micro_batch=with_reduce - without_reduce)


def stage_time(stage: Stage, layers: list[PartTime], head: HeadCost, wires: Wires, sharing: Sharing) -> PartTime:
    """Add up the seconds and parameters of a pipeline stage for one micro-batch: its layers, and the ends that it has.

    ``stage``: numbers of layers of each kind, and whether it has embedding and head. ``layers``: seconds of a layer of
    each kind. ``head``: work of the head. ``wires``: seconds of single exchanges.
    """
    parts = [layer.times(count) for count, layer in zip(stage.layers_by_run, layers, strict=True) if count]
    if stage.has_head:
        parts.append(
            PartTime(
                arithmetic_seconds=head.forward.arithmetic_seconds
                + head.backward.arithmetic_seconds
                + head.recomputed.arithmetic_seconds,
                memory_seconds=head.forward.memory_seconds
                + head.backward.memory_seconds
                + head.recomputed.memory_seconds,
            )
        )
    if stage.mtp_layers:
        parts.append(_predictions(stage.mtp_layers, head, wires))
    parts += _ends(stage, head, wires, sharing)
    return PartTime(*[sum(values) for values in zip(*parts, strict=True)])


def _predictions(count: int, head: HeadCost, wires: Wires) -> PartTime:
    """Return what ``count`` multi-token-prediction layers add to their transformer layers.

    Each has a product of its own before its layer, and logits and a loss of its own after it.
    """
    work = (head.forward, head.backward, head.recomputed, head.mtp_projection)
    return PartTime(
        arithmetic_seconds=count * sum([seconds.arithmetic_seconds for seconds in work]),
        memory_seconds=count * sum([seconds.memory_seconds for seconds in work]),
        exposed_tensor_seconds=count * PREDICTION_PAIRS * wires.tensor.pair,
        dense_parameters=count * head.mtp_projection_parameters,
        trained_dense_parameters=count * head.mtp_projection_parameters,
    )


def _ends(stage: Stage, head: HeadCost, wires: Wires, sharing: Sharing) -> list[PartTime]:
    """Return the parameters and exchanges of embedding and head, as far as the stage has them."""
    parameters = trained = 0
    if stage.has_head:
        parameters += head.head_parameters
        trained += head.head_parameters if head.head_is_trained else 0
    if stage.has_embedding or stage.mtp_layers:  # prediction needs the embedding where it runs
        parameters += head.embedding_parameters
        trained += head.embedding_parameters if head.embedding_is_trained else 0
    if not parameters:
        return []
    pairs = [stage.has_head, stage.has_embedding].count(True)
    parts = [
        PartTime(
            exposed_tensor_seconds=wires.tensor.pair * pairs,
            dense_parameters=parameters,
            trained_dense_parameters=trained,
        )
    ]
    if sharing.item_bytes.zero_stage == 3:  # no computation overlaps the first gather and the last reduction
        if sharing.gathers_every_micro_batch:
            parts.append(
                PartTime(exposed_data_seconds=gather_seconds(sharing.dense_copies, parameters, sharing.item_bytes))
            )
        reduce = reduce_seconds(sharing.dense_copies, trained, sharing.item_bytes)
        parts.append(
            PartTime(exposed_data_seconds=reduce)
            if sharing.reduces_every_micro_batch
            else PartTime(last_exposed_data_seconds=reduce)
        )
    return parts


def bubble_seconds(
    layout: Layout, micro_batches: int, stages: tuple[Stage, ...], times: list[PartTime], slowest: PartTime
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
        return max(0.0, bubbles * (mean_other_rank - 3 * slowest.weight_gradient_seconds))
    if schedule in ("zero-bubble", "dualpipe"):
        # ZB-H1, (p - 1)(F + B - 2 W): at most two weight gradients fill the bubble of each other rank
        filling = min(2 * (ranks - 1), micro_batches)
        return max(0.0, other_ranks - filling * slowest.weight_gradient_seconds)
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
