"""A lower bound of a job's peak that costs a fraction of an estimate: what rests on the fullest rank between steps.

The states at rest are live at every instant of a step, so that no peak lies below them. A search leaves out whatever
does not even hold its states, without replaying a single activation.
"""

from __future__ import annotations

from collections import Counter

from memcheck.accounts.state import LocalTensor, Resting
from memcheck.accounts.unit import Part
from memcheck.frameworks.torch.pipelining import fullest, parts
from memcheck.frameworks.torch.resting import sharding, tensors_resting
from memcheck.frameworks.torch.units import (
    base_setting,
    block_tensors_on_rank,
    embedding_tensors,
    frozen_layers,
    head_tensors,
    is_head_frozen,
    is_table_frozen,
    is_tied,
)
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Rough


def states_floor(job: TrainingJob) -> int:
    """Bytes that are allocated at every instant of a step on the fullest rank; 0 where no bound is known."""
    if isinstance(job.architecture, Rough):
        return 0
    if job.framework == "megatron":
        return _megatron(job, job.architecture)
    return max(_part(job, job.architecture, part) for part in parts(job.architecture.num_layers, job.layout.pipeline))


def _part(job: TrainingJob, a: Architecture, part: Part) -> int:
    base, frozen = base_setting(job, a, None), frozen_layers(job.freeze)
    total = Resting()
    layers = a.layers()[part.first : part.last]
    blocks = {id(block): block for block in layers}
    counts = Counter((id(block), base.trained and i not in frozen) for i, block in enumerate(layers, part.first))
    for (key, trained), count in counts.items():
        tensors = block_tensors_on_rank(
            blocks[key], base.tensor, base.expert, base.expert_tensor, trained, base.frozen, base.adapter
        )
        total = total.plus(tensors_resting(job, tensors), count)
    for tensors in _outer(job, a, part, trained=base.trained):
        total = total.plus(tensors_resting(job, tensors))
    states = total.optimizer_states
    cut = sharding(job)
    if job.layout.zero_stage == 1 and not cut.flat:
        states //= cut.optimizer  # whole tensors are dealt out: the fullest rank has the mean or more
    return total.parameters + total.adapters + total.master_weights + states


def _outer(job: TrainingJob, a: Architecture, part: Part, *, trained: bool) -> list[tuple[LocalTensor, ...]]:
    """The tensors of embedding and head, as far as the rank has them."""
    tensor, found = job.layout.tensor, []
    if part.embedding:
        found.append(embedding_tensors(a, tensor, trained and not is_table_frozen(job, a)))
    if part.head:
        tied = is_tied(a, tensor) and part.embedding
        head = trained and not is_head_frozen(job, a)
        found.append(head_tensors(a, tensor, tied, head, trained and "norm" not in job.freeze))
    return found


def _megatron(job: TrainingJob, a: Architecture) -> int:
    """Contiguous buffers hold the gradients all step, too."""
    from memcheck.frameworks.megatron import buffers, fsdp
    from memcheck.frameworks.megatron.stages import stages
    from memcheck.frameworks.megatron.tensors import block_tensors, embedding_tensors, head_tensors

    if job.freeze or job.option("mtp_num_layers") or job.method != "full":
        return 0
    layers, worst = a.layers(), 0
    of_block = {id(block): block_tensors(block, job, a.hidden_size) for block, _ in a.blocks}
    held = stages(a.num_layers, job)
    contents = [tuple((c.embedding, c.head, tuple(id(layers[i]) for i in c.layers)) for c in rank) for rank in held]
    for rank in fullest(job, contents):
        tensors: list[LocalTensor] = []
        chunks = held[rank]
        shares = a.tie_word_embeddings and any(c.embedding for c in chunks) and any(c.head for c in chunks)
        for chunk in chunks:
            tensors += embedding_tensors(a, job) if chunk.embedding else ()
            for i in chunk.layers:
                tensors += of_block[id(layers[i])]
            tensors += head_tensors(a, job, shares=shares) if chunk.head else ()
        rest = fsdp.resting(job, tensors) if fsdp.is_sharded(job) else buffers.resting(job, tensors)
        worst = max(worst, sum(rest))
    return worst
