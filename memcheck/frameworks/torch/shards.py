"""Shards of the states: a lower bound of the peak, and what padding adds to each shard."""

from __future__ import annotations

from collections import Counter

from memcheck.accounts.ranks import Part
from memcheck.accounts.state import FOUR_BITS, LocalTensor, StateBytes
from memcheck.autograd.tensor import ceil_div, round_up
from memcheck.frameworks.torch.fsdp import fsdp_group, uses_fsdp
from memcheck.frameworks.torch.pipelining import stage_parts
from memcheck.frameworks.torch.rank_tensors import block_tensors, placement_of
from memcheck.frameworks.torch.resident import shard_placement, sharding, state_bytes
from memcheck.frameworks.torch.trained_parts import frozen_layers
from memcheck.frameworks.torch.whole_model import tensors_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Block, Moe
from memcheck.record import Record


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Return a lower bound of the peak in bytes: the resident states of the fullest pipeline rank."""
    frozen = frozen_layers(job.freeze)
    layers = [(id(block), i in frozen) for i, block in enumerate(architecture.layers())]
    # ranks with as many layers of each kind rest on as many bytes
    distinct_parts: dict[tuple[bool, bool, frozenset[tuple[tuple[int, bool], int]]], Part] = {}
    for stage in stage_parts(architecture.num_layers, job.layout.pipeline, job.layout.fewer_layers):
        counts = Counter(layers[stage.first : stage.last])
        distinct_parts.setdefault((stage.embedding, stage.head, frozenset(counts.items())), stage)
    return max(_state_bytes_of(job, architecture, stage) for stage in distinct_parts.values())


def _state_bytes_of(job: TrainingJob, architecture: Architecture, stage: Part) -> int:
    """Return the resident bytes of parameters, adapters, master weights and optimizer states of one pipeline rank."""
    total = StateBytes()
    units = list(tensors_of(job, architecture, stage))
    counts = Counter(map(id, units))  # layers that are alike share their tensors
    for tensors in {id(unit): unit for unit in units}.values():
        total = total.plus(state_bytes(job, tensors), counts[id(tensors)])
    states, shards = total.optimizer_states, sharding(job)
    if job.layout.zero_stage == 1 and not shards.flat:
        states //= shards.optimizer  # whole tensors are dealt out: the fullest rank has the mean or more
    return total.parameters + total.adapters + total.master_weights + states


LEAST_BYTES = 2**28
LEAST_SHARE = 1 / 4


class PaddedLayer(Record):
    """One layer while its parameters are gathered."""

    experts: int
    """Experts that a rank holds before FSDP2 divides them."""
    shards: int
    """Ranks over which FSDP2 divides these experts."""
    padded: int
    """Bytes."""
    whole: int
    """Bytes without padding."""


def padded_layer(job: TrainingJob, model: Architecture) -> PaddedLayer | None:
    """Return the layer of experts with most padding while gathered.

    None if no layer's padding is at least a quarter of its size and 256 MiB.
    """
    if not uses_fsdp(job) or job.fsdp == 1 or (job.base_format and job.base_format not in FOUR_BITS):
        return None  # a base in other bits is one that FSDP does not shard: MEM408
    layers = [_padded_layer(job, model, block) for block, _ in model.blocks if isinstance(block.mlp, Moe)]
    most_padded = max(layers, key=lambda layer: layer.padded - layer.whole, default=None)
    if most_padded is None or most_padded.padded - most_padded.whole < max(
        LEAST_BYTES, most_padded.whole * LEAST_SHARE
    ):
        return None
    return most_padded


def ranks_without_padding(job: TrainingJob, layer: PaddedLayer) -> int:
    """The most ranks that divide the sharding group and are no more than the layer's experts."""
    return max(n for n in range(1, layer.experts + 1) if job.layout.shard_group % n == 0)


def experts_padding(job: TrainingJob, experts: int) -> float:
    """Return the factor by which sharding pads a layer's stacked experts while they are gathered; 1.0 without padding.

    ``experts``: of the whole layer. FSDP2 shards the experts of a rank along dim 0.
    """
    if not uses_fsdp(job) or job.fsdp == 1:
        return 1.0
    local_experts = ceil_div(experts, job.layout.expert)
    ranks = job.layout.shard_group
    stack, shards = shard_placement(
        job, LocalTensor("experts", (local_experts, ranks, ranks), False, expert=True), ranks
    )
    return 1.0 if stack.divided else round_up(local_experts, shards) / local_experts


def _padded_layer(job: TrainingJob, model: Architecture, block: Block) -> PaddedLayer:
    """Return the bytes of a layer of experts while it is gathered, with the padding of its shards and without.

    FSDP2 shards along the first dimension, the experts: if they do not divide, every rank's shard is padded.
    """

    def gathered_bytes(tensors_and_shards: list[tuple[LocalTensor, int]]) -> int:
        """Return the bytes of the gathered parameters of one FSDP2 group."""
        group = fsdp_group(
            tensors_and_shards, job.recipe, casts_every_tensor=False, accumulation_dtype=job.recipe.reduce
        )
        return group.gathered

    sharded = [shard_placement(job, t, job.layout.shard_group) for t in block_tensors(block, placement_of(job))]
    padded, unpadded = gathered_bytes(sharded), gathered_bytes([(t, 1) for t, _ in sharded])
    experts, shards = max((t.shape[0], shards_of_tensor) for t, shards_of_tensor in sharded if t.expert)
    return PaddedLayer(experts=experts, shards=shards, padded=padded, whole=unpadded)
