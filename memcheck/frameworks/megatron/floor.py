"""A lower bound of a Megatron job's peak: the resident bytes on the fullest rank between steps."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.megatron.buffers import counted
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.frameworks.megatron.stages import stages
from memcheck.frameworks.megatron.tensors import block_tensors, embedding_tensors, head_tensors
from memcheck.frameworks.torch.pipelining import ranks_with_highest_peak
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


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
            (chunk.embedding, chunk.head, tuple([id(layers[number]) for number in chunk.layers])) for chunk in chunks
        ]
        contents.append(tuple(described))
    for rank in ranks_with_highest_peak(job, contents):
        chunks = chunks_by_rank[rank]
        has_both_ends = any(chunk.embedding for chunk in chunks) and any(chunk.head for chunk in chunks)
        shares_table = architecture.tie_word_embeddings and has_both_ends
        units: list[tuple[LocalTensor, ...]] = []
        for chunk in chunks:
            if chunk.embedding:
                units.append(tuple(embedding_tensors(architecture, job)))
            units += [tensors_by_block[id(layers[number])] for number in chunk.layers]
            if chunk.head:
                units.append(tuple(head_tensors(architecture, job, shares=shares_table)))
        resident = code.resident(job, counted(units))
        highest_bytes = max(highest_bytes, sum(n_bytes for _, n_bytes in resident.components))
    return highest_bytes
