"""What the engine asks of Megatron-LM: ranks, host memory, a lower bound of the peak, and how long steps take.

The times are those of Transformer Engine's layers, Megatron's pipelines and its dispatchers of tokens to experts.
"""

from __future__ import annotations

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.ranks import Part
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.tensor import ceil_div
from memcheck.frameworks.megatron.adapters import adapter_parameters
from memcheck.frameworks.megatron.buffers import counted
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.frameworks.megatron.ranks import MegatronWorst, megatron_ranks
from memcheck.frameworks.megatron.stages import exchanges, stages
from memcheck.frameworks.megatron.tensors import block_tensors, embedding_tensors, head_tensors
from memcheck.frameworks.megatron.workspaces import Device
from memcheck.frameworks.registry import (
    HostMemory,
    ModelStateBytes,
    Saving,
    Stack,
    Timing,
    WorstRank,
    optimizer_on_host,
)
from memcheck.frameworks.torch.pipelining import ranks_with_highest_peak, stage_parts
from memcheck.frameworks.torch.tower_tensors import trainable_parameters
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, LatentAttention, Mlp, Moe, ParameterTensor

LATENT = {
    "q_proj": "linear_q_proj",
    "q_a_proj": "linear_q_down_proj",
    "q_b_proj": "linear_q_up_proj",
    "kv_a_proj_with_mqa": "linear_kv_down_proj",
    "kv_b_proj": "linear_kv_up_proj",
    "o_proj": "linear_proj",
}
"""Layers of latent attention (``core/transformer/multi_latent_attention.py``)."""
CONTEXT = {"p2p": "engine", "a2a": "ulysses", "all_gather": "gather", "a2a+p2p": "gather"}
"""Kinds of context parallelism by ``cp_comm_type``."""


def parts_by_rank(num_layers: int, job: TrainingJob, pipeline_ranks: int) -> list[list[tuple[Part, int]]]:
    """Return for each pipeline rank its parts of the model, each with its number of prediction layers (MTP).

    Megatron's options decide how ``num_layers`` layers are divided (``stages.py``).
    """
    if pipeline_ranks == 1:
        predictions = int(str(job.option("mtp_num_layers") or 0))
        return [[(stage, predictions if stage.has_head else 0)] for stage in stage_parts(num_layers, pipeline_ranks)]
    parts_of_ranks = []
    for chunks in stages(num_layers, job):
        parts = []
        for chunk in chunks:
            first, last = (chunk.layers[0], chunk.layers[-1] + 1) if chunk.layers else (0, 0)
            parts.append(
                (Part(first, last, has_embedding=chunk.has_embedding, has_head=chunk.has_head), chunk.mtp_layers)
            )
        parts_of_ranks.append(parts)
    return parts_of_ranks


def context(job: TrainingJob) -> str:
    """Return the kind of context parallelism: Transformer Engine's ring by default, or by ``cp_comm_type``."""
    stated = job.option("cp_comm_type", "p2p")  # a list says it layer by layer; lists that differ are refused
    return CONTEXT[str(stated[0] if isinstance(stated, (list, tuple)) else stated)]


def dispatch(job: TrainingJob) -> str:
    """Return the token dispatcher of experts, ``moe_token_dispatcher_type`` (``moe/token_dispatcher.py``)."""
    kind = str(job.option("moe_token_dispatcher_type", "allgather"))
    return kind if kind in ("allgather", "flex") else "alltoall"


def overlaps(job: TrainingJob) -> tuple[bool, bool]:
    """Say whether the reduction and the gathering overlap: options ``overlap_grad_reduce``, ``overlap_param_gather``,
    off by default.
    """
    return bool(job.option("overlap_grad_reduce")), bool(job.option("overlap_param_gather"))


def fuses(job: TrainingJob) -> bool:
    """Whether layers run fused kernels: in Transformer Engine, unless told to use the local implementation."""
    return job.compile or job.option("transformer_impl", "transformer_engine") != "local"


def adapted_module_name(tensor: ParameterTensor, component: object) -> str:
    """Return Megatron's name of the layer that has this matrix: ``linear_qkv`` holds three of transformers' layers."""
    name = tensor.name.removesuffix(".weight")
    if isinstance(component, LatentAttention):
        return LATENT.get(name.rpartition(".")[2], name)
    if isinstance(component, Attention):
        return {"column": "linear_qkv", "row": "linear_proj"}.get(tensor.shard, name)
    if isinstance(component, (Mlp, Moe)):
        return {"column": "linear_fc1", "row": "linear_fc2"}.get(tensor.shard, name)
    return name


TIMING = Timing(
    layers_by_rank=parts_by_rank,
    context_kind=context,
    token_dispatch=dispatch,
    overlaps_reduction_and_gather=overlaps,
    fuses_elementwise=fuses,
    copies_gathered_states=lambda _job: False,  # hidden states are [sequence, batch, hidden]
    repeats_kv_heads=lambda _job: False,
    fused_products=lambda _job: "all",
    fused_norms=True,
    latent_input_tokens="exchanged",
    adapted_module_name=adapted_module_name,
    gathers_inputs_twice=True,
)


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Return the bytes of the model's states on the fullest pipeline rank: a lower bound of every instant of a step.

    Gradients are included, since Megatron's contiguous gradient buffers exist all step. 0: no bound is known.
    """
    if job.freeze or job.option("mtp_num_layers") or job.method != "full":
        return 0
    layers, highest_bytes = architecture.layers(), 0
    code = code_of(job.framework.style)
    tensors_by_block = {
        id(block): tuple(block_tensors(block, job, architecture.hidden_size)) for block, _ in architecture.blocks
    }
    chunks_by_rank = stages(architecture.num_layers, job)
    # what each pipeline rank has, so that equal ranks are computed once
    contents = []
    for chunks in chunks_by_rank:
        described = [
            (chunk.has_embedding, chunk.has_head, tuple([id(layers[number]) for number in chunk.layers]))
            for chunk in chunks
        ]
        contents.append(tuple(described))
    for rank in ranks_with_highest_peak(job, contents):
        chunks = chunks_by_rank[rank]
        has_both_ends = any(chunk.has_embedding for chunk in chunks) and any(chunk.has_head for chunk in chunks)
        shares_table = architecture.tie_word_embeddings and has_both_ends
        units: list[tuple[LocalTensor, ...]] = []
        for chunk in chunks:
            if chunk.has_embedding:
                units.append(tuple(embedding_tensors(architecture, job)))
            units += [tensors_by_block[id(layers[number])] for number in chunk.layers]
            if chunk.has_head:
                units.append(tuple(head_tensors(architecture, job, shares=shares_table)))
        resident = code.resident(job, counted(units))
        highest_bytes = max(highest_bytes, sum(n_bytes for _, n_bytes in resident.components))
    return highest_bytes


def loaded(job: TrainingJob, total: int) -> int:
    """Return the bytes of host memory that each rank fills when it creates its part of the model's ``total`` bytes.

    Source: ``--use-cpu-initialization`` (tensor_parallel/layers.py).
    """
    return ceil_div(total, job.layout.tensor * job.layout.pipeline)


def saving(job: TrainingJob, model_bytes: ModelStateBytes) -> Saving:
    """Return what moves to a node's host memory when a checkpoint is saved: a description, and bytes by component.

    Under torch_dist every rank moves what it writes. In the legacy format the first rank of each data-parallel group
    gathers the optimizer's states of its model shard. ``model_bytes``: bytes of the whole model's states.
    """
    layout = job.layout
    if job.checkpoint.state_dict == "sharded":
        if job.optimizer.offload != "none":  # offloaded states are in host memory already
            model_bytes = model_bytes._replace(master_weights=0, optimizer_states=0)
        components = {
            name: model_total * layout.gpus_per_node // layout.world_size
            for name, model_total in model_bytes._asdict().items()
        }
        description = "every rank moving what it writes to the host"
        return description, tuple((name, n_bytes) for name, n_bytes in components.items() if n_bytes)
    stages_per_node = max(1, layout.gpus_per_node * layout.pipeline // layout.world_size)
    gathered_shards = min(layout.gpus_per_node, layout.tensor * stages_per_node)
    model_shards = layout.tensor * layout.pipeline
    master = 0
    if job.checkpoint.optimizer:
        master = model_bytes.master_weights or model_bytes.parameters  # fp32 parameters are their own master copy
    components = {
        "master_weights": master * gathered_shards // model_shards,
        "optimizer_states": model_bytes.optimizer_states * gathered_shards // model_shards,
    }
    description = "rank 0 of each data-parallel group gathering the optimizer states"
    return description, tuple((name, n_bytes) for name, n_bytes in components.items() if n_bytes)


HOST = HostMemory(loaded=loaded, laid_out=lambda _job, _total, _room: (), states=optimizer_on_host, saving=saving)


def ranks(job: TrainingJob, architecture: Architecture, arch: str | None, inventory: bool) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank; Transformer Engine chooses its kernels by the GPU."""
    return megatron_ranks(job, architecture, Device(arch), inventory=inventory)


def worst(job: TrainingJob, architecture: Architecture, arch: str | None) -> WorstRank:
    """What finds the worst rank."""
    return MegatronWorst(job, architecture, Device(arch))


def trainable(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Count the trained parameters of the whole model, and the adapter parameters added to it."""
    if job.lora is None:
        return trainable_parameters(job, architecture)

    added = adapter_parameters(job, architecture)
    return added, added


STACK = Stack(
    ranks=ranks,
    worst_rank=worst,
    states_floor=states_floor,
    trained_parameters=trainable,
    process_groups=exchanges,
    host_memory=HOST,
)
