"""Gathering parameters and reducing gradients over data-parallel ranks, and what of it computation hides.

The plan's keys say what each micro-batch of a step gathers and reduces, where the framework reads them.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import expert_slices
from memcheck.frameworks.registry import timing_of
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.record import Record
from memcheck.timing.rates import GroupLinks, Rates, all_reduce, gather, group


class Copies(Record):
    """The groups that share one parameter."""

    shard_links: GroupLinks
    """Ranks that hold parts of one copy; of one rank when nothing is sharded."""
    replica_links: GroupLinks
    """Ranks that hold the same part."""


class ExchangedBytes(Record):
    """Bytes per element of what data-parallel ranks exchange, and the ZeRO stage that says what they exchange."""

    bytes_per_parameter: int
    """Bytes per parameter of an all-gather."""
    bytes_per_gradient: int
    """Bytes per gradient of a reduction."""
    zero_stage: int
    """ZeRO stage, 0 to 3."""


@lru_cache(maxsize=1024)
def copies(rates: Rates, ranks: int, stride: int, shard: int) -> Copies:
    """Describe the groups of ``ranks`` data-parallel ranks, ``stride`` apart; ``shard`` of them share one copy."""
    shard = max(1, min(shard, ranks))
    return Copies(group(rates, shard, stride), group(rates, ranks // shard, stride * shard))


def dense_copies(job: TrainingJob, rates: Rates) -> Copies:
    """Return the groups that share the parameters outside experts: the data- and context-parallel ranks."""
    layout = job.layout
    ranks = layout.data * layout.context
    return copies(rates, ranks, layout.tensor, layout.shard_group if layout.zero_stage else 1)


def expert_copies(job: TrainingJob, rates: Rates) -> Copies:
    """Return the groups that share one expert: the ranks with the same experts and the same parts of them."""
    layout = job.layout
    ranks_of_all_experts = layout.expert * expert_slices(layout, own_degree=job.framework.has_sharding_engine)
    ranks = max(1, layout.data * layout.context * layout.tensor // ranks_of_all_experts)
    shard = max(1, layout.shard_group * layout.tensor // ranks_of_all_experts) if layout.zero_stage else 1
    return copies(rates, ranks, stride=ranks_of_all_experts, shard=shard)


def precision(job: TrainingJob) -> ExchangedBytes:
    """Return the bytes per element on the wire: FSDP gathers in the compute dtype, and reduces in the recipe's."""
    recipe, stage = job.recipe, job.layout.zero_stage
    gathered = DTYPE_BYTES[recipe.compute if stage == 3 else recipe.params]
    if recipe.recipe == "fp8-mixed" and job.option("enable_fsdp_float8_all_gather") is True:
        gathered = DTYPE_BYTES["fp8"]
    return ExchangedBytes(bytes_per_parameter=gathered, bytes_per_gradient=DTYPE_BYTES[recipe.reduce], zero_stage=stage)


def gather_seconds(copies: Copies, parameters: float, item_bytes: ExchangedBytes) -> float:
    """Compute the seconds of all-gathering ``parameters`` parameters, those of one FSDP unit, over their shards."""
    return gather(copies.shard_links, parameters * item_bytes.bytes_per_parameter)


def reduce_seconds(copies: Copies, parameters: float, item_bytes: ExchangedBytes) -> float:
    """Compute the seconds of reducing ``parameters`` gradients, those of one FSDP unit.

    They are reduce-scattered where they are sharded (ZeRO 2 and 3, Megatron's distributed optimizer), then all-reduced
    over the replicas of a shard.
    """
    size = parameters * item_bytes.bytes_per_gradient
    if copies.shard_links.ranks == 1:
        return all_reduce(copies.replica_links, size)
    return gather(copies.shard_links, size) + all_reduce(copies.replica_links, size / copies.shard_links.ranks)


def overlaps(job: TrainingJob) -> tuple[bool, bool]:
    """Whether the reduction of gradients and the gathering of parameters overlap computation."""
    return timing_of(job.framework).overlaps_reduction_and_gather(job)


def reduces_every(job: TrainingJob) -> bool:
    """Say whether gradients are reduced with every micro-batch instead of with the last one.

    Megatron reduces with the last one unless gradients are sharded (megatron_fsdp.py, grad_reduce_every_bprop), and so
    does DeepSpeed (zero/stage_1_and_2.py, process_gradients; engine.py, allreduce_gradients).
    """
    framework = job.framework
    if framework.has_sharding_engine:
        return job.layout.zero_stage >= 2
    lacking = "parallelism.gradient_sync" in framework.lacks
    return (framework.parallelism.gradient_sync_default if lacking else job.layout.gradient_sync) == "every"


def gathers_again(job: TrainingJob) -> bool:
    """Say whether sharded parameters are gathered again for backward: always where nothing can keep them."""
    lacking = "parallelism.reshard_after_forward" in job.framework.lacks
    return job.layout.reshard_after_forward or lacking
