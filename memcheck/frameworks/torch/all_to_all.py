"""The buffers through which a library sends tokens to the ranks of their experts, in addition to a mesh's groups."""

from __future__ import annotations

from memcheck.accounts.deepep import deepep_bytes, hybrid_bytes
from memcheck.accounts.process_groups import Term
from memcheck.frameworks.torch.groups import MeshGroups
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture, Moe


class AllToAllBuffers(MeshGroups):
    """Tokens travel to experts through a library's buffers, and not through NCCL's.

    Source: NVIDIA-NeMo/Automodel ``components/moe/megatron/fused_a2a.py``: get_buffer and get_uccl_buffer, as large as
    DeepEP asks for; init_hybrid_ep_buffer, which grows to the tokens of a micro-batch.
    """

    def __init__(self, name: str, hidden: int, tokens: int, experts: int) -> None:
        self._name, self._hidden, self._tokens, self._experts = name, hidden, tokens, experts

    def buffers(self, layout: Layout) -> tuple[Term, ...]:
        """The library's buffers for one expert group."""
        ranks = layout.expert
        if self._name == "hybridep":
            near = layout.gpus_per_node
            size = hybrid_bytes(ranks, near, self._hidden, self._tokens, -(-self._experts // ranks))
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
