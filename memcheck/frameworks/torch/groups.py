"""Process groups of a device mesh, as torch.distributed makes them, and the libraries that carry tokens to experts."""

from __future__ import annotations

from memcheck.accounts.process_groups import ProcessGroup, Term, deepep_bytes, hybrid_bytes, nodes_of, spread
from memcheck.autograd.tensor import ceil_div
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture, Moe


class MeshGroups:
    """Every dimension of the mesh has a group. Ranks are laid out tensor first, then context, data, pipeline."""

    def groups(self, layout: Layout) -> tuple[ProcessGroup, ...]:
        """Every group of one rank with a communicator of its own."""
        return mesh_groups(layout)

    def buffers(self, layout: Layout) -> tuple[Term, ...]:
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
                local=min(local, layout.pipeline),
                nodes=nodes_of(layout.pipeline, local),
                collectives=False,
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
    return ProcessGroup("world", min(layout.world_size, layout.gpus_per_node), layout.nodes, collectives=True)


def _has_all_ranks(group: ProcessGroup, layout: Layout) -> bool:
    """Return whether a group has all ranks: it is then the default group, which has its communicator already."""
    return group.local * group.nodes == layout.world_size


class AllToAllBuffers(MeshGroups):
    """Tokens travel to experts through a library's buffers, and not through NCCL's.

    Source: NVIDIA-NeMo/Automodel ``components/moe/megatron/fused_a2a.py``: get_buffer and get_uccl_buffer, as large as
    DeepEP asks for; init_hybrid_ep_buffer, which grows to the tokens of a micro-batch.
    """

    def __init__(self, name: str, hidden: int, tokens: int, experts: int) -> None:
        self._name, self._hidden = name, hidden
        self._tokens, self._experts = tokens, experts

    def buffers(self, layout: Layout) -> tuple[Term, ...]:
        """Return the library's buffers for one expert group."""
        ranks = layout.expert
        if self._name == "hybridep":
            near = layout.gpus_per_node
            size = hybrid_bytes(ranks, near, self._hidden, self._tokens, ceil_div(self._experts, ranks))
            return (("HybridEP", size, f"buffers for {ranks} ranks (deepseek-ai/DeepEP csrc/hybrid_ep/buffer)"),)
        source = f"buffers for {ranks} ranks (deepseek-ai/DeepEP csrc/config.hpp, deep_ep/buffer.py)"
        return (("DeepEP", deepep_bytes(ranks, self._hidden), source),)


def all_to_all_buffers(job: TrainingJob) -> AllToAllBuffers | None:
    """Return the library that carries tokens to experts on other ranks; None for a model without such experts."""
    model = job.architecture
    if not isinstance(model, Architecture):
        return None
    experts = max((block.mlp.experts for block, _ in model.blocks if isinstance(block.mlp, Moe)), default=0)
    tokens = job.micro_batch_size * job.sequence_length // job.layout.context
    name = str(job.option("dispatcher"))
    return AllToAllBuffers(name, model.hidden_size, tokens, experts) if experts else None
