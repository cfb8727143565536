"""What the processes of one node hold in host memory, where stacks differ, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.accounts.ranks import Components
from memcheck.accounts.state import LOW_BITS, STATES_PER_PARAMETER
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Rough
from memcheck.record import Record

Saving = tuple[str, Components]
"""What happens in words, and what the processes of a node hold for it in addition to what is resident there."""
NO_SAVING: Saving = ("", ())


class ModelStateBytes(Record):
    """Bytes of the whole model's state."""

    parameters: int
    master_weights: int
    optimizer_states: int


class HostMemory(Record):
    """Moments of a run in host memory. Parameters are counted over the whole model."""

    loaded: Callable[[TrainingJob, int], int]
    """Parameters that each process holds in memory of its own when the model is made on the host."""
    laid_out: Callable[[TrainingJob, int, int], Components]
    """What is moved through host memory to be laid out anew; ``room``, the last argument: bytes of a GPU without its
    context.
    """
    states: Callable[[TrainingJob], Components]
    """What stays in host memory while the steps run, because the plan offloads it."""
    saving: Callable[[TrainingJob, ModelStateBytes], Saving]
    """What saving takes; the checkpoint is one that saves."""


def state_bytes(job: TrainingJob, total: int, trained: int) -> ModelStateBytes:
    """Return the bytes of parameters, master weights and optimizer states. Optimizer states count if they are saved."""
    recipe = job.recipe
    states = STATES_PER_PARAMETER[job.optimizer.name] * trained
    low = LOW_BITS.get(job.optimizer.name)
    bits = 8 if job.optimizer.name.endswith("8bit") else 8 * DTYPE_BYTES[recipe.optimizer_states]
    bits = low.bits if low is not None else bits
    saved = job.checkpoint.optimizer
    return ModelStateBytes(
        parameters=total * DTYPE_BYTES[recipe.params],
        master_weights=trained * DTYPE_BYTES[recipe.master] if saved and recipe.master != "none" else 0,
        optimizer_states=states * bits // 8 if saved else 0,
    )


def of_node(job: TrainingJob, n_bytes: int) -> int:
    """Return the bytes in host memory that the ranks of one node keep of a sharded state of ``n_bytes`` per rank.

    Groups that replicate the state keep as many copies of it.
    """
    layout = job.layout
    copies = max(1, layout.data * layout.context // max(1, layout.shard_group))
    return n_bytes * copies * layout.gpus_per_node // layout.world_size


def optimizer_on_host(job: TrainingJob) -> tuple[tuple[str, int], ...]:
    """Return the bytes on a node's host of optimizer states, master weights and their gradients, for all of its
    ranks.
    """
    layout, model = job.layout, job.architecture
    total = model.parameters if isinstance(model, Rough) else count_parameters(model)
    copies = max(1, layout.data * layout.context)
    if layout.zero_stage >= 1:
        copies = max(1, layout.data * layout.context // layout.shard_group)
    per_node = total * copies * layout.gpus_per_node // layout.world_size
    states = per_node * STATES_PER_PARAMETER[job.optimizer.name] * DTYPE_BYTES[job.recipe.optimizer_states]
    if job.optimizer.offload != "cpu":
        return ()
    components = (("optimizer_states", states), ("master_weights", per_node * 4), ("gradients", per_node * 4))
    return tuple((name, count) for name, count in components if count)


def block(n_bytes: int, pinned: bool) -> int:
    """Bytes of one buffer of host memory: what is pinned is rounded up to a power of two."""
    return 1 << (n_bytes - 1).bit_length() if pinned and n_bytes else n_bytes
