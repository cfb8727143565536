"""A lower bound of a Megatron job's peak: the resident bytes on the fullest rank between steps."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.megatron.counted import counted
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.frameworks.megatron.stages import stages
from memcheck.frameworks.megatron.tensors import block_tensors, embedding_tensors, head_tensors
from memcheck.frameworks.torch.pipelining import ranks_with_highest_peak
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Return the bytes that are allocated at every instant of a step on the fullest rank; 0 where no bound is known.

    These are the model's states. They include the gradients, whose contiguous buffers exist all step.
    """
    if job.freeze or job.option("mtp_num_layers") or job.method != "full":
        return 0
    layers, highest_bytes = architecture.layers(), 0
    code = code_of(job.framework.style)
    tensors_by_block = {
        id(block): tuple(block_tensors(block, job, architecture.hidden_size)) for block, _ in architecture.blocks
    }
    chunks_by_rank = stages(architecture.num_layers, job)
    contents = [
        tuple([(c.embedding, c.head, tuple([id(layers[i]) for i in c.layers])) for c in rank])
        for rank in chunks_by_rank
    ]
    for rank in ranks_with_highest_peak(job, contents):
        units: list[tuple[LocalTensor, ...]] = []
        chunks = chunks_by_rank[rank]
        shares = architecture.tie_word_embeddings and any(c.embedding for c in chunks) and any(c.head for c in chunks)
        for chunk in chunks:
            units += [tuple(embedding_tensors(architecture, job))] if chunk.embedding else []
            units += [tensors_by_block[id(layers[i])] for i in chunk.layers]
            units += [tuple(head_tensors(architecture, job, shares=shares))] if chunk.head else []
        tensors = counted(units)
        highest_bytes = max(highest_bytes, sum(n_bytes for _, n_bytes in code.resident(job, tensors).components))
    return highest_bytes
