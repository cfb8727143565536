"""How long Megatron's steps take: Transformer Engine's layers, its pipelines, its dispatchers of tokens to experts."""

from __future__ import annotations

from memcheck.accounts.ranks import Part
from memcheck.frameworks.megatron.stages import stages
from memcheck.frameworks.registry import Timing
from memcheck.frameworks.torch.pipelining import stage_parts
from memcheck.job.types import TrainingJob
from memcheck.models.types import Attention, LatentAttention, Mlp, Moe, ParameterTensor

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


def ranks(num_layers: int, job: TrainingJob, pipeline_ranks: int) -> list[list[tuple[Part, int]]]:
    """Return for each pipeline rank its parts of the model, each with its number of prediction layers (MTP).

    Megatron's options decide how ``num_layers`` layers are divided (``stages.py``).
    """
    if pipeline_ranks == 1:
        predictions = int(str(job.option("mtp_num_layers") or 0))
        return [[(stage, predictions if stage.head else 0)] for stage in stage_parts(num_layers, pipeline_ranks)]
    parts_of_ranks = []
    for chunks in stages(num_layers, job):
        parts = []
        for chunk in chunks:
            first, last = (chunk.layers[0], chunk.layers[-1] + 1) if chunk.layers else (0, 0)
            parts.append((Part(first, last, embedding=chunk.embedding, head=chunk.head), chunk.mtp))
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
    ranks=ranks,
    context=context,
    dispatch=dispatch,
    overlaps=overlaps,
    fuses=fuses,
    copies_gathered=lambda _job: False,  # hidden states are [sequence, batch, hidden]
    repeats_kv_heads=lambda _job: False,
    fused_products=lambda _job: "all",
    fused_norms=True,
    latent_inputs="exchanged",
    adapted_module_name=adapted_module_name,
    gathers_twice=True,
)
