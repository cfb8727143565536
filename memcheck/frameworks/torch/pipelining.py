"""Which layers a pipeline rank holds, and how many micro-batches it keeps alive.

Process groups of a device mesh, as torch.distributed makes them, and the libraries that carry tokens to experts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

from memcheck.accounts.process_groups import OutsideTerm, ProcessGroup, deepep_bytes, hybrid_bytes, nodes_of, spread
from memcheck.accounts.ranks import Part
from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture, Moe
from memcheck.record import Record

SPLIT = ("zero-bubble", "dualpipe")
"""Schedules that run the gradients of inputs and of weights at different times."""


@lru_cache(maxsize=256)
def stage_parts(num_layers: int, stages: int, end_layers: tuple[int, int] = (0, 0)) -> tuple[Part, ...]:
    """Split ``num_layers`` layers evenly over ``stages`` pipeline stages; if they do not divide, early ones get one
    more.

    The first stage has the embedding, the last one the final norm and the head. ``end_layers``: the numbers of layers
    that the embedding and the head count as; their stages have that many layers fewer
    (torchtitan/distributed/pipeline_parallel.py, _generate_llm_fqn_per_model_part).
    """
    layers_taken_off = (end_layers[0], *(0,) * (stages - 2), end_layers[1]) if stages > 1 else (0,)
    layers_per_stage, extra = divmod(num_layers + sum(layers_taken_off), stages)
    if layers_per_stage < max(layers_taken_off):
        raise UnsupportedError(
            f"{num_layers} layers and {sum(layers_taken_off)} for the ends "
            f"make fewer than {max(layers_taken_off)} for each of {stages} stages",
            "use fewer pipeline stages",
            "/parallelism/pipeline",
        )
    stages_found, start = [], 0
    for stage in range(stages):
        end = start + layers_per_stage + (1 if stage < extra else 0) - layers_taken_off[stage]
        stages_found.append(
            Part(first_layer=start, end_layer=end, has_embedding=stage == 0, has_head=stage == stages - 1)
        )
        start = end
    return tuple(stages_found)


class StageExchange(Record):
    """Bytes of tensors that a pipeline stage exchanges with its neighbours, and keeps."""

    output: int = 0
    """Output of each micro-batch in flight, cached until its backward (torch before 2.15)."""
    input_gradient: int = 0
    """Gradient of the last micro-batch's input, cached while it is sent."""
    unsent_output: int = 0
    """Output of a micro-batch that is still being sent while the next one runs forward (torch 2.15)."""
    sends: int = 0
    """How many unsent outputs there may be."""
    output_gradient: int = 0
    """Gradient of the output, received for each backward (torch 2.15)."""


NO_EXCHANGE = StageExchange()


def in_flight(rank: int, layout: Layout, micro_batches: int) -> float:
    """Return how many micro-batches' activations rank ``rank`` holds at most, in units of the whole rank.

    gpipe: all. 1f1b: the ranks after it plus itself (Narayanan et al. 2021, section 2.2). interleaved-1f1b: warm-up of
    2 (P - s - 1) + (v - 1) P chunks plus one, a chunk being 1/v of the rank (Megatron-core schedules.py). zero-bubble:
    as 1f1b (ZB-H1, Qi et al. 2023: same memory). dualpipe: P + 1 micro-batches on every rank (DeepSeek-V3 report, table
    2: activations PP + 1).
    """
    stages, virtual_stages = layout.pipeline, max(1, layout.virtual_stages)
    schedule = layout.pipeline_schedule
    if stages == 1:
        return 1
    if schedule == "gpipe":
        return micro_batches
    if schedule == "interleaved-1f1b" and virtual_stages > 1:
        chunks = 2 * (stages - rank - 1) + (virtual_stages - 1) * stages + 1
        return min(chunks, micro_batches * virtual_stages) / virtual_stages
    if schedule == "dualpipe":
        return min(stages + 1, micro_batches)
    return min(stages - rank, micro_batches)


def distinct_micro_batches(micro_batches: int, in_flight: float, last_differs: bool) -> list[tuple[bool, bool, float]]:
    """Return the micro-batches that differ, as (first, last, other micro-batches in flight during its backward).

    ``last_differs``: the last one differs from the second.
    """
    count, most_in_flight = micro_batches, in_flight
    if count == 1:
        return [(True, True, 0)]
    walks = [(True, False, most_in_flight - 1), (False, count == 2, max(0.0, min(most_in_flight - 1, count - 2)))]
    return [*walks, (False, True, 0)] if count > 2 and last_differs else walks


def distinct_pair_passes(micro_batches: int, last_differs: bool) -> list[tuple[bool, bool, float]]:
    """Return the passes that differ, as (first of its pair, last of the step, other micro-batches alive then).

    A pair is two forwards, of queries and of documents, before one backward. The first backward is of the second pass,
    while both are alive. ``last_differs``: the last micro-batch differs from those in the middle.
    """
    distinct: list[tuple[bool, bool, float]] = []
    for last in (False,) * min(micro_batches - 1, 2 if last_differs else 1) + (True,):
        distinct += [(True, False, 1), (False, last, 0)]
    return distinct


def max_in_flight(layout: Layout) -> int:
    """Return an upper bound of the micro-batches in flight on any pipeline rank, except under gpipe, which has all.

    The first rank has the most: with P ranks of v chunks, interleaved 1F1B has 2 (P - 1) + (v - 1) P + 1 chunk passes
    in flight, each of 1/v of the rank's layers. That is fewer than 3 P full micro-batches.
    """
    return 3 * layout.pipeline


def ranks_with_highest_peak(job: TrainingJob, contents: Sequence[Hashable]) -> list[int]:
    """Return the pipeline ranks that may have the highest peak; of ranks with equal ``contents`` the first.

    No schedule keeps more micro-batches alive on a later rank (``in_flight``; Megatron's warm-up), and all else that
    two ranks with the same layers hold is the same, so that the first one's peak is at least as high. Where a setting
    depends on the number of a layer, or later ranks put off the gradients of weights, every rank is looked at.
    """
    by_number = job.freeze or job.checkpointing.every_n_layers > 1 or job.option("first_last_layers_bf16")
    if by_number or job.layout.pipeline_schedule in SPLIT:
        return list(range(len(contents)))
    first_with_contents: dict[Hashable, int] = {}
    for rank, content in enumerate(contents):
        first_with_contents.setdefault(content, rank)
    return list(first_with_contents.values())


class MeshGroups:
    """Every dimension of the mesh has a group. Ranks are laid out tensor first, then context, data, pipeline."""

    def groups(self, layout: Layout) -> tuple[ProcessGroup, ...]:
        """Every group of one rank with a communicator of its own."""
        return mesh_groups(layout)

    def buffers(self, layout: Layout) -> tuple[OutsideTerm, ...]:
        """No library other than NCCL exchanges data."""
        return ()


MESH = MeshGroups()


def mesh_groups(layout: Layout) -> tuple[ProcessGroup, ...]:
    """Return the process groups of one rank of a device mesh with dimensions ``pp, dp, cp, tp``, the last one fastest.

    Each dimension has a group, and so have FSDP's shards under HSDP, experts and their replicas.
    """
    groups = [_world_group(layout)] if layout.world_size > 1 else []
    inner = 1
    tensor = spread("tensor", layout.tensor, inner, layout)
    inner *= layout.tensor
    context = spread("context", layout.context, inner, layout)
    inner *= layout.context
    data = spread("data", layout.data * layout.context, layout.tensor, layout)
    groups.extend(group for group in (tensor, context, data) if group is not None and not _has_all_ranks(group, layout))
    if 1 < layout.shard_group < layout.data * layout.context:
        shard = spread("shard", layout.shard_group, layout.tensor, layout)
        if shard is not None:
            groups.append(shard)
    if layout.pipeline > 1:
        stride = layout.world_size // layout.pipeline
        local = max(1, layout.gpus_per_node // stride)
        neighbours = min(2, layout.pipeline - 1)
        groups.append(
            ProcessGroup(
                kind="pipeline",
                ranks_in_node=min(local, layout.pipeline),
                nodes=nodes_of(layout.pipeline, local),
                uses_collectives=False,
                peers=neighbours,
            )
        )
    expert = spread("expert", layout.expert, layout.expert_tensor, layout)
    if expert is not None:
        # tokens are exchanged all to all; only their counts are gathered
        groups.append(expert._replace(peers=layout.expert - 1))
        expert_replicas = layout.data * layout.context * layout.tensor // (layout.expert * layout.expert_tensor)
        replicas = spread("expert data", expert_replicas, layout.expert * layout.expert_tensor, layout)
        if replicas is not None:
            groups.append(replicas)
    return tuple(groups)


def _world_group(layout: Layout) -> ProcessGroup:
    return ProcessGroup("world", min(layout.world_size, layout.gpus_per_node), layout.nodes, uses_collectives=True)


def _has_all_ranks(group: ProcessGroup, layout: Layout) -> bool:
    """Return whether a group has all ranks: it is then the default group, which has its communicator already."""
    return group.ranks_in_node * group.nodes == layout.world_size


class AllToAllBuffers(MeshGroups):
    """Tokens travel to experts through a library's buffers, and not through NCCL's.

    Source: NVIDIA-NeMo/Automodel ``components/moe/megatron/fused_a2a.py``: get_buffer and get_uccl_buffer, as large as
    DeepEP asks for; init_hybrid_ep_buffer, which grows to the tokens of a micro-batch.
    """

    def __init__(self, name: str, hidden: int, tokens: int, experts: int) -> None:
        self._name, self._hidden = name, hidden
        self._tokens, self._experts = tokens, experts

    def buffers(self, layout: Layout) -> tuple[OutsideTerm, ...]:
        """Return the library's buffers for one expert group."""
        ranks = layout.expert
        if self._name == "hybridep":
            near = layout.gpus_per_node
            size = hybrid_bytes(ranks, near, self._hidden, self._tokens, ceil_div(self._experts, ranks))
            source = f"buffers for {ranks} ranks (deepseek-ai/DeepEP csrc/hybrid_ep/buffer)"
            return (OutsideTerm("HybridEP", size, source),)
        source = f"buffers for {ranks} ranks (deepseek-ai/DeepEP csrc/config.hpp, deep_ep/buffer.py)"
        return (OutsideTerm("DeepEP", deepep_bytes(ranks, self._hidden), source),)


def all_to_all_buffers(job: TrainingJob) -> AllToAllBuffers | None:
    """Return the library that carries tokens to experts on other ranks; None for a model without such experts."""
    model = job.architecture
    if not isinstance(model, Architecture):
        return None
    experts = max((block.mlp.experts for block, _ in model.blocks if isinstance(block.mlp, Moe)), default=0)
    tokens = job.micro_batch_size * job.sequence_length // job.layout.context
    name = str(job.option("dispatcher"))
    return AllToAllBuffers(name, model.hidden_size, tokens, experts) if experts else None
