"""Every way to cut a job over its GPUs: degrees, sharding and pipeline schedule together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcheck.job.framework import Framework
from memcheck.job.types import InferenceJob, Layout, TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.degrees import experts_of, width_of
from memcheck.what_if.remedies.types import EQUIVALENT, CandidateChange

LEAST_TOKENS = 2048
"""Context parallelism is not taken further than to this many tokens of a sequence on each rank."""
MOST_STAGES = 64
VIRTUAL_STAGES = (2, 4)
RESHARD = "parallelism.reshard_after_forward"


class Degrees(Record):
    """The values that each degree may have."""

    tensor: tuple[int, ...]
    context: tuple[int, ...]
    pipeline: tuple[int, ...]
    expert: tuple[int, ...]


def training_layouts(
    context: RuleContext,
    job: TrainingJob,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    *,
    faster: bool = False,
    may_set: Callable[[str], bool] | None = None,
) -> Iterator[CandidateChange]:
    """Layouts of the job on its GPUs, or on others, with more sharding before less. Rules decide which are legal.

    ``faster``: also those that keep gathered parameters until backward. ``may_set``: no degree is changed whose key it
    refuses.
    """
    framework = context.framework
    if framework is None:
        return
    now = job.layout
    there = now._replace(nodes=nodes or now.nodes, gpus_per_node=gpus_per_node or now.gpus_per_node)
    degrees = degrees_of(framework, job, there)
    if may_set is not None:
        fixed = {name: (getattr(now, name),) for name in Degrees._fields if not may_set(f"parallelism.{name}")}
        degrees = degrees._replace(**fixed)
    keeps = faster and now.reshard_after_forward and RESHARD not in framework.lacks
    for tensor in degrees.tensor:
        for cp in degrees.context:
            for stages in degrees.pipeline:
                if there.world_size % (tensor * cp * stages):
                    continue
                data = there.world_size // (tensor * cp * stages)
                cut = there._replace(tensor=tensor, context=cp, pipeline=stages, data=data)
                cut = cut._replace(sequence=tensor > 1 and "sequence" in framework.parallelism.degrees)
                for placed in _experts(framework, job, cut, degrees):
                    for each in _schedules(framework, now, placed):
                        for sharded in _sharded(framework, now, each):
                            yield _candidate(framework, now, sharded)
                            if keeps and sharded.zero_stage == 3 and sharded.shard_group > 1:
                                yield _candidate(framework, now, sharded._replace(reshard_after_forward=False))


def _experts(framework: Framework, job: TrainingJob, cut: Layout, degrees: Degrees) -> Iterator[Layout]:
    """Experts dealt out over ranks, each of them whole, or cut over as many ranks as the layers are.

    Megatron-LM takes any degree for its experts, and the tensor degree unless told otherwise; torchtitan takes 1 or the
    tensor degree, in releases that have it: those of plans that state it.
    """
    now, width = job.layout, width_of(job.architecture)
    ranks = cut.data * cut.context * cut.tensor
    for expert in degrees.expert:
        for parts in sorted(_parts(framework, job, cut, expert)):
            if parts in (1, now.expert_tensor) or not (ranks % (expert * parts) or width % parts):
                yield cut._replace(expert=expert, expert_tensor=parts)


def _parts(framework: Framework, job: TrainingJob, cut: Layout, expert: int) -> set[int]:
    """Ranks over which an expert may be cut."""
    now = job.layout
    if experts_of(job.architecture) == 1:
        return {now.expert_tensor}
    found = {1}
    if framework.own_expert_groups:
        found |= {*divisors(cut.tensor), now.expert_tensor}
    elif "expert_tensor" in framework.parallelism.degrees and now.expert_tensor > 1 and expert > 1:
        found.add(cut.tensor)
    if (expert, cut.tensor) == (now.expert, now.tensor):
        found.add(now.expert_tensor)
    return found


def degrees_of(framework: Framework, job: TrainingJob, layout: Layout) -> Degrees:
    """What the framework has, within a node for tensor parallelism."""
    able, now = framework.parallelism.degrees, job.layout
    model = job.architecture
    layers = model.num_layers if isinstance(model, Architecture) else model.layers
    tensor = divisors(layout.gpus_per_node) if "tensor" in able else (1,)
    longest = max(1, job.sequence_length // LEAST_TOKENS)
    cp = powers(min(longest, layout.world_size)) if "context" in able else (1,)
    stages = divisors(layout.world_size, min(layers, MOST_STAGES)) if "pipeline" in able else (1,)
    deals = "expert" in able and (now.expert > 1 or not framework.own_loop)  # a loop of one's own has it or has not
    expert = powers(experts_of(model)) if deals else (1,)
    return Degrees(
        *(
            tuple(sorted({*values, written}))
            for values, written in (
                (tensor, now.tensor),
                (cp, now.context),
                (stages, now.pipeline),
                (expert, now.expert),
            )
        )
    )


def serving_layouts(job: InferenceJob, nodes: int, gpus_per_node: int) -> Iterator[CandidateChange]:
    """Tensor and pipeline parallelism of a served model; the rest of the GPUs serve copies.

    Experts that nothing is said about are cut as the layers are. Where the plan says how they are placed, they stay so,
    are cut like that, or are dealt out over the same ranks.
    """
    world, now = nodes * gpus_per_node, job.layout
    model = job.architecture
    layers = model.num_layers if isinstance(model, Architecture) else 1
    placed = now.expert * now.expert_tensor > 1
    for tensor in reversed(divisors(gpus_per_node)):  # a pipeline makes a token wait for every stage
        for stages in divisors(world // tensor, min(layers, MOST_STAGES)):
            experts = {(1, 1), (tensor, 1), (now.expert, now.expert_tensor)} if placed else {(1, 1)}
            for expert, parts in sorted(experts):
                changes: dict[str, object] = {}
                _put(changes, "hardware.nodes", nodes, now.nodes)
                _put(changes, "hardware.gpus_per_node", gpus_per_node, now.gpus_per_node)
                _put(changes, "parallelism.tensor", tensor, now.tensor)
                _put(changes, "parallelism.pipeline", stages, now.pipeline)
                _put(changes, "parallelism.expert", expert, now.expert)
                _put(changes, "parallelism.expert_tensor", parts, now.expert_tensor)
                yield CandidateChange("layout" if changes else "", _words(changes), changes, numerics=EQUIVALENT)


def _schedules(framework: Framework, now: Layout, cut: Layout) -> Iterator[Layout]:
    """Pipeline schedules, the one with the least memory first."""
    if cut.pipeline == 1:
        yield cut._replace(pipeline_schedule="1f1b", virtual_stages=1)
        return
    for schedule in dict.fromkeys(("1f1b", "zero-bubble", "dualpipe", "interleaved-1f1b", now.pipeline_schedule)):
        if schedule not in framework.parallelism.schedules:
            continue
        virtual = {*VIRTUAL_STAGES, now.virtual_stages} - {1} if schedule == "interleaved-1f1b" else {1}
        virtual = {2} if schedule == "dualpipe" else virtual
        for v in sorted(virtual):
            yield cut._replace(pipeline_schedule=schedule, virtual_stages=v)


def _sharded(framework: Framework, now: Layout, cut: Layout) -> Iterator[Layout]:
    """ZeRO stages, the most sharding first; over all ranks, over those of a node, over as many as now."""
    ranks = cut.data * cut.context
    if ranks == 1:
        yield cut._replace(zero_stage=0, shard_group=1)
        return
    for stage in sorted(framework.parallelism.zero_stages, reverse=True):
        if stage == 0:
            yield cut._replace(zero_stage=0, shard_group=1)
            continue
        near = max(1, cut.gpus_per_node // cut.tensor)
        groups = {ranks} | {g for g in (near, now.shard_group) if 1 < g < ranks and ranks % g == 0}
        if framework.own_engine or stage < 3:
            groups = {ranks} | ({now.shard_group} & groups if now.zero_stage == stage else set())
        for group in sorted(groups, reverse=True):
            yield cut._replace(zero_stage=stage, shard_group=group)


def _candidate(framework: Framework, now: Layout, cut: Layout) -> CandidateChange:
    """The layout as changes of the plan's keys: only of those that are not what they are."""
    changes: dict[str, object] = {}
    for key in ("nodes", "gpus_per_node"):
        _put(changes, f"hardware.{key}", getattr(cut, key), getattr(now, key))
    for key in ("tensor", "context", "pipeline", "expert", "expert_tensor", "zero_stage"):
        _put(changes, f"parallelism.{key}", getattr(cut, key), getattr(now, key))
    usual = framework.parallelism.sequence if cut.tensor > 1 and now.tensor == 1 else now.sequence
    _put(changes, "parallelism.sequence", cut.sequence, usual and (cut.tensor > 1 or now.sequence))
    if cut.pipeline > 1 or now.virtual_stages > 1:
        _put(changes, "parallelism.virtual_stages", cut.virtual_stages, now.virtual_stages)
    if cut.pipeline > 1:
        _put(changes, "parallelism.pipeline_schedule", cut.pipeline_schedule, now.pipeline_schedule)
    _put(changes, RESHARD, cut.reshard_after_forward, now.reshard_after_forward)
    whole = cut.shard_group == cut.data * cut.context
    if cut.zero_stage and not (whole and now.shard_group in (1, now.data * now.context)):
        _put(changes, "parallelism.shard_group", "auto" if whole else cut.shard_group, now.shard_group)
    return CandidateChange("layout" if changes else "", _words(changes), changes, numerics=EQUIVALENT)


def _words(changes: dict[str, object]) -> str:
    told = {key: str(each).lower() if isinstance(each, bool) else each for key, each in changes.items()}
    return ", ".join(f"{key.rpartition('.')[2].replace('_', ' ')} {each}" for key, each in told.items())


def _put(changes: dict[str, object], key: str, value: object, now: object) -> None:
    if value != now:
        changes[key] = value


def divisors(number: int, most: int | None = None) -> tuple[int, ...]:
    """Divisors up to ``most``."""
    return tuple(n for n in range(1, min(number, most or number) + 1) if number % n == 0)


def powers(most: int) -> tuple[int, ...]:
    """Powers of two up to ``most``."""
    return tuple(1 << n for n in range(max(1, most).bit_length()))
