"""From a unit's tensors to the resident bytes of a rank, per framework and ZeRO stage."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.accounts.state import LocalTensor, StateBytes, optimizer_state_bytes, shard_numel, weight_bytes
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.torch.fsdp import flattens
from memcheck.job.recipe import keeps_full_states
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.record import Record

MATRICES = 3
"""Dimensions of stacked matrices."""


class Sharding(Record):
    """Over how many ranks each kind of state is divided."""

    parameters: int
    gradients: int
    optimizer: int
    """Master weights and optimizer states."""
    flat: bool
    """Flat buffers (ZeRO, distributed optimizer) instead of dim-0 shards per tensor."""


def expert_ways(job: TrainingJob, ways: int) -> int:
    """Ranks that share one copy of an expert: the sharding group without expert parallelism."""
    layout = job.layout
    if layout.expert * layout.expert_tensor == 1:
        return ways
    return max(1, ways * layout.tensor // (layout.expert * layout.expert_tensor))


def sharding(job: TrainingJob) -> Sharding:
    """What the plan's ZeRO stage divides. torch.distributed: 1 = ZeroRedundancyOptimizer, 2 and 3 = FSDP2."""
    stage, ways = job.layout.zero_stage, job.layout.shard_group
    if job.framework.own_engine:
        return Sharding(ways if stage >= 3 else 1, ways if stage >= 2 else 1, ways if stage >= 1 else 1, flat=True)
    if stage >= 2:
        return Sharding(ways, ways, ways, flat=flattens(job))
    return Sharding(1, 1, ways if stage == 1 else 1, flat=False)


def divided_over(job: TrainingJob, tensor: LocalTensor, ways: int) -> tuple[LocalTensor, int]:
    """A tensor with the dimension that FSDP2 cuts of it, and its number of shards, given that of a dense one.

    Experts are cut inside of each matrix where the framework has it so, because few of them are on a rank. Sources:
    torchtitan ``distributed/fsdp.py`` (``expert_shard_placement``; ``models/llama4/infra/parallelize.py`` up to 0.2.2),
    which keeps them as [experts, outputs, inputs]; NeMo AutoModel ``components/moe/parallelizer.py``
    (``_moe_shard_placement``), which keeps them as [experts, inputs, outputs].
    """
    if not tensor.expert or ways <= 1:
        return tensor, ways
    own, profile = expert_ways(job, ways), job.framework
    cuts = profile.fsdp2.cuts_expert_matrices
    if not cuts or len(tensor.shape) != MATRICES or tensor.divided:
        return tensor, own
    whole = "expert matrices" not in profile.since or profile.predates(job.framework_version, "expert matrices")
    if job.layout.expert == 1 and whole:
        return tensor, own
    if cuts == "always":
        return tensor._replace(divided=2), own
    return (tensor._replace(divided=1) if own > tensor.shape[0] else tensor), own


def shard_of(job: TrainingJob, tensor: LocalTensor, ways: int, flat: bool) -> int:
    """Elements of the largest shard of one tensor."""
    tensor, ways = divided_over(job, tensor, ways)
    if ways <= 1:
        return tensor.numel
    return -(-tensor.numel // ways) if flat else shard_numel(tensor, ways)


def is_updated(job: TrainingJob, tensor: LocalTensor) -> bool:
    """Whether the optimizer steps on a tensor: on every one with a gradient, except those that only FSDP1's flat
    parameters give a gradient.
    """
    if not flattens(job):
        return tensor.trained
    from memcheck.frameworks.torch.flat_parameters import is_stepped

    return is_stepped(job, tensor)


def state_bytes(job: TrainingJob, tensors: Iterable[LocalTensor]) -> StateBytes:
    """Bytes of some tensors on one rank: parameters, gradients while they exist, master weights, optimizer states."""
    recipe, cut = job.recipe, sharding(job)
    rows, every = flattens(job), tuple(tensors)  # rows of FSDP1's flat tensor: optimizers see one dimension
    if rows:
        from memcheck.frameworks.torch.flat_parameters import updated
    masters_all = job.framework.masters_adapters
    parameters = adapters = gradients = master = states = 0
    for t in every:
        held = shard_of(job, t, cut.parameters, cut.flat)
        size = weight_bytes(t, resident_dtype(job, t), held)
        if ".lora_" in t.name:
            adapters += size
        else:
            parameters += size
        if not is_updated(job, t):
            continue
        adapter = None if masters_all else t.dtype
        reduced = held if cut.gradients == cut.parameters else shard_of(job, t, cut.gradients, cut.flat)
        mine = reduced if cut.optimizer == cut.gradients else shard_of(job, t, cut.optimizer, cut.flat)
        mine = updated(job, t, every) if rows else mine
        gradients += rounded(reduced * DTYPE_BYTES[adapter or recipe.gradients])
        if adapter is None and recipe.master != "none":
            master += rounded(mine * DTYPE_BYTES[recipe.master])
        if job.optimizer.offload == "none":
            seen = t._replace(shape=(t.numel,)) if rows else t
            states += optimizer_state_bytes(seen, mine, job.optimizer.name, states_dtype(job, t))
    if job.optimizer.offload != "none":
        master = 0
    if job.parameter_offload != "none":
        parameters = 0
        if offloads_states(job):
            # FSDP's CPU offload keeps all sharded parameters, gradients and optimizer states on the host
            adapters = gradients = master = states = 0
    return StateBytes(parameters, adapters, gradients, master, states)


def offloads_states(job: TrainingJob) -> bool:
    """Whether what is offloaded with the parameters is gradients and optimizer states, too: by FSDP."""
    return job.parameter_offload != "none" and not job.framework.own_engine


def own_adafactor(job: TrainingJob) -> bool:
    """Whether Adafactor is transformers' own, whose states and steps are in fp32 (optimization.py)."""
    profile = job.framework
    return job.optimizer.name == "adafactor" and bool(profile.trainers) and not profile.own_engine


def states_dtype(job: TrainingJob, tensor: LocalTensor) -> str:
    """Dtype of the optimizer's states of one tensor: a master copy's, or the tensor's own."""
    profile = job.framework
    if own_adafactor(job):
        return "fp32"
    if tensor.dtype is None or profile.masters_adapters:
        return job.recipe.optimizer_states
    if keeps_full_states(job.optimizer, profile):
        return job.recipe.optimizer_states
    return tensor.dtype


def resident_dtype(job: TrainingJob, tensor: LocalTensor) -> str:
    """Dtype in which one tensor is stored between steps.

    With QLoRA, peft's prepare_model_for_kbit_training (peft/utils/other.py) casts what is not quantised, norms,
    embeddings and head, to fp32.
    """
    if job.prepares_kbit and not tensor.trained:
        return "fp32"
    return job.recipe.params
