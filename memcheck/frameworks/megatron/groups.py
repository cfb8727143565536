"""Megatron's process groups as NCCL sees them, and the buffers of DeepEP.

Source: Megatron-core ``parallel_state.py`` (initialize_model_parallel). What each call of ``create_group`` makes is, as
far as a step uses it, a communicator of its own, also where it has the ranks of another one:

- the default group: barriers, so that one algorithm of a small sum is all it connects;
- ``tp``, ``cp``, ``dp_cp``, ``pp``: activations, gradients, stages;
- ``ep``: all-to-all of tokens under the ``alltoall`` dispatcher; ``ep_tp``: their counts, or the tokens themselves
  under ``allgather`` (the default), where no pair of ranks is connected (``transformer/moe/token_dispatcher.py``);
- ``mp``, the ranks of one copy of the model: whether a step succeeded, and the largest gradient norm
  (``training/training.py``, train_step; ``training/utils``, logical_and_across_model_parallel_group);
- all ranks of a distributed optimizer instance: the sum of the gradients' squares (``optimizer/__init__.py``,
  grad_stats_parallel_group; without the distributed optimizer that is ``mp``);
- ``embd``: the gradients of tied embeddings on the first and the last stage.

Under the ``flex`` dispatcher tokens travel through DeepEP's buffers.
"""

from __future__ import annotations

from memcheck.accounts.process_groups import ProcessGroup, Term, deepep_bytes, spread
from memcheck.autograd.tensor import ceil_div
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture, Moe
from memcheck.record import Record


class Use(Record):
    """What of a job decides which groups it uses."""

    dispatcher: str
    """``allgather`` | ``alltoall`` | ``flex``."""
    distributed: bool
    """The optimizer's states are divided."""
    instances: int
    tied: bool
    """Embedding and output layer share one matrix."""
    sends_ring: bool
    """Context parallelism passes keys and values to a neighbour."""
    token_width: int
    """Hidden size of the tokens in DeepEP's buffers; 0 where it is not used."""
    routed: bool = True
    """The model has experts."""

    def groups(self, layout: Layout) -> tuple[ProcessGroup, ...]:
        """Every communicator of one rank, as far as a step uses it."""
        return megatron_groups(layout, self)

    def buffers(self, layout: Layout) -> tuple[Term, ...]:
        """Return DeepEP's buffers, in place of NCCL's connections between expert ranks."""
        ranks = layout.expert * layout.expert_tensor
        if not self.token_width or ranks == 1:
            return ()
        source = f"buffers for {ranks} ranks (deepseek-ai/DeepEP csrc/config.hpp, deep_ep/buffer.py)"
        return (("DeepEP", deepep_bytes(ranks, self.token_width), source),)


def exchanges(job: TrainingJob) -> Use:
    """Read from the job's options and model what decides which communicators a rank has."""
    stated_distributed = job.option("use_distributed_optimizer")
    dispatcher = str(job.option("moe_token_dispatcher_type", "allgather"))
    deepep = dispatcher == "flex" and job.option("moe_flex_dispatcher_backend", "deepep") == "deepep"
    model = job.architecture
    return Use(
        dispatcher=dispatcher,
        distributed=job.layout.zero_stage >= 1 if stated_distributed is None else bool(stated_distributed),
        instances=int(str(job.option("num_distributed_optimizer_instances") or 1)),
        tied=isinstance(model, Architecture) and model.tie_word_embeddings,
        sends_ring=job.option("cp_comm_type", "p2p") == "p2p",
        token_width=model.hidden_size if deepep else 0,
        routed=isinstance(model, Architecture) and any(isinstance(block.mlp, Moe) for block, _ in model.blocks),
    )


def megatron_groups(layout: Layout, use: Use) -> tuple[ProcessGroup, ...]:
    """Return every communicator of one rank that a step uses: world, tensor, context, data, pipeline, experts.

    ``use``: the job's settings that decide which groups exist.
    """
    if layout.world_size == 1:
        return ()
    world = ProcessGroup(
        "world", min(layout.world_size, layout.gpus_per_node), layout.nodes, collectives=True, small=True
    )
    tensor = spread("tensor", layout.tensor, 1, layout)
    context = spread("context", layout.context, layout.tensor, layout)
    if context is not None and use.sends_ring:
        context = context._replace(peers=min(2, layout.context - 1))
    data = spread("data", layout.data * layout.context, layout.tensor, layout)
    groups = [world, *(group for group in (tensor, context, data) if group is not None)]
    if layout.pipeline > 1:
        ranks_per_stage = layout.world_size // layout.pipeline
        stages_per_node = min(max(1, layout.gpus_per_node // ranks_per_stage), layout.pipeline)
        nodes = ceil_div(layout.pipeline, stages_per_node)
        groups.append(
            ProcessGroup(
                kind="pipeline",
                local=stages_per_node,
                nodes=nodes,
                collectives=False,
                peers=min(2, layout.pipeline - 1),
            )
        )
        if use.tied:
            groups.append(
                ProcessGroup("embedding", min(stages_per_node, 2), 2 // min(stages_per_node, 2), collectives=True)
            )
    groups += _sums(layout, use)
    return (*groups, *_experts(layout, use))


def _sums(layout: Layout, use: Use) -> list[ProcessGroup]:
    """Return the communicators that add up single numbers: over one copy of the model, and over an optimizer's
    instance.

    The first one agrees whether a step succeeded. The second sums the squares of the gradients' norm.
    """
    groups = []
    ranks = layout.tensor * layout.pipeline
    if ranks > 1:
        ranks_per_node = min(ranks, layout.gpus_per_node if layout.data * layout.context == 1 else layout.tensor)
        groups.append(
            ProcessGroup("model", ranks_per_node, ceil_div(ranks, ranks_per_node), collectives=True, small=True)
        )
    ranks = layout.world_size // use.instances
    if use.distributed and ranks > 1:
        ranks_per_node = min(ranks, layout.gpus_per_node)
        groups.append(
            ProcessGroup("gradient norm", ranks_per_node, ceil_div(ranks, ranks_per_node), collectives=True, small=True)
        )
    return groups


def _experts(layout: Layout, use: Use) -> list[ProcessGroup]:
    """Return the communicators of routed experts; none without experts or with all of them on each rank.

    They are expert, expert-tensor and expert-data parallel groups, and the joint group that gathers tokens.
    """
    groups: list[ProcessGroup] = []
    ranks = layout.expert * layout.expert_tensor
    if ranks == 1 or not use.routed:
        return groups
    expert_group = spread("expert", layout.expert, layout.expert_tensor, layout)
    expert_tensor_group = spread("expert tensor", layout.expert_tensor, 1, layout)
    token_group = spread("expert tokens", ranks, 1, layout)
    if use.dispatcher == "alltoall":
        groups += [] if expert_group is None else [expert_group._replace(collectives=False, peers=layout.expert - 1)]
        groups += [] if expert_tensor_group is None else [expert_tensor_group]
    if token_group is not None:
        groups.append(token_group._replace(small=True))  # all-gather and reduce-scatter connect ring neighbours alone
    replicas = layout.data * layout.context * layout.tensor // ranks
    expert_data_group = spread("expert data", replicas, ranks, layout)
    return [*groups, *([expert_data_group] if expert_data_group is not None else [])]
