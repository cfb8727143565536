"""A lower bound of a job's peak that costs a fraction of an estimate: the bytes that stay allocated between steps on
the fullest rank.

The resident states are live at every instant of a step, so that no peak lies below them. A search leaves out plans that
do not even hold their states, without replaying a single activation.
"""

from __future__ import annotations

from collections import Counter

from memcheck.accounts.state import StateBytes
from memcheck.accounts.unit import Part
from memcheck.frameworks.torch.pipelining import parts
from memcheck.frameworks.torch.resident import sharding, state_bytes
from memcheck.frameworks.torch.trained_parts import frozen_layers
from memcheck.frameworks.torch.whole_model import tensors_of
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Bytes that are allocated at every instant of a step on the fullest rank; 0 where no bound is known."""
    frozen = frozen_layers(job.freeze)
    layers = [(id(block), i in frozen) for i, block in enumerate(architecture.layers())]
    # ranks with as many layers of each kind rest on as many bytes
    alike: dict[tuple[bool, bool, frozenset[tuple[tuple[int, bool], int]]], Part] = {}
    for part in parts(architecture.num_layers, job.layout.pipeline, job.layout.fewer_layers):
        counts = Counter(layers[part.first : part.last])
        alike.setdefault((part.embedding, part.head, frozenset(counts.items())), part)
    return max(_state_bytes_of(job, architecture, part) for part in alike.values())


def _state_bytes_of(job: TrainingJob, architecture: Architecture, part: Part) -> int:
    total = StateBytes()
    units = list(tensors_of(job, architecture, part))
    times = Counter(map(id, units))  # layers that are alike share their tensors
    for tensors in {id(unit): unit for unit in units}.values():
        total = total.plus(state_bytes(job, tensors), times[id(tensors)])
    states, cut = total.optimizer_states, sharding(job)
    if job.layout.zero_stage == 1 and not cut.flat:
        states //= cut.optimizer  # whole tensors are dealt out: the fullest rank has the mean or more
    return total.parameters + total.adapters + total.master_weights + states
