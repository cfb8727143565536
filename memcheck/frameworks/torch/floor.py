"""A lower bound of a job's peak that costs a fraction of an estimate: what rests on the fullest rank between steps.

The states at rest are live at every instant of a step, so that no peak lies below them. A search leaves out whatever
does not even hold its states, without replaying a single activation.
"""

from __future__ import annotations

from collections import Counter

from memcheck.accounts.state import LocalTensor, Resting
from memcheck.accounts.unit import Part
from memcheck.autograd.context import Setting
from memcheck.frameworks.torch.end_tensors import output_tensors, table_tensors
from memcheck.frameworks.torch.pipelining import parts
from memcheck.frameworks.torch.resting import sharding, tensors_resting
from memcheck.frameworks.torch.trained_parts import frozen_layers, is_table_frozen, is_tied
from memcheck.frameworks.torch.units import base_setting, block_tensors_on_rank
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture

Kind = tuple[int, bool]
"""Identity of a block, and whether it is trained."""


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Bytes that are allocated at every instant of a step on the fullest rank; 0 where no bound is known."""
    base, frozen = base_setting(job, architecture, None), frozen_layers(job.freeze)
    layers = [(id(block), base.trained and i not in frozen) for i, block in enumerate(architecture.layers())]
    # Ranks with as many layers of each kind rest on as many bytes.
    alike: dict[tuple[bool, bool, frozenset[tuple[Kind, int]]], Part] = {}
    for part in parts(architecture.num_layers, job.layout.pipeline):
        counts = Counter(layers[part.first : part.last])
        alike.setdefault((part.embedding, part.head, frozenset(counts.items())), part)
    return max(_part(job, architecture, base, part, Counter(layers[part.first : part.last])) for part in alike.values())


def _part(job: TrainingJob, a: Architecture, base: Setting, part: Part, counts: Counter[Kind]) -> int:
    total = Resting()
    blocks = {id(block): block for block, _ in a.blocks}
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
        found.append(table_tensors(job, a, tensor, trained and not is_table_frozen(job, a)))
        if a.vision is not None or a.encoder is not None or a.others:
            from memcheck.frameworks.torch.tower_tensors import side_tensors

            found += side_tensors(job, a, base_setting(job, a, None))
    if part.head:
        tied = is_tied(a, tensor) and part.embedding
        found.append(output_tensors(job, a, tensor, tied, trained))
    return found
