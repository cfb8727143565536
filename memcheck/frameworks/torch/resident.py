"""What is resident on a rank: states of its tensors, gradient buckets, the engine's buffers.

Temporaries of the optimizer step.

Sources: torch/optim/adamw.py, torch/optim/_adafactor.py, torch/optim/_muon.py. _multi_tensor_adamw makes one list of
sqrt(exp_avg_sq) for all parameters at once. _single_tensor_adamw makes two tensors at a time, while one of the previous
tensor is live. The fused kernel makes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memcheck.accounts.ranks import Components, ResidentStates, ResidentTensors
from memcheck.accounts.state import (
    LOW_BITS,
    LocalTensor,
    StateBytes,
    Unfilled,
    optimizer_state_bytes,
    orthogonalised,
    paged_bytes,
    shard_numel,
    unfilled,
    weight_bytes,
)
from memcheck.autograd.tensor import BLOCK_BYTES, ceil_div, rounded
from memcheck.autograd.weight_formats import FORMATS
from memcheck.frameworks.registry import engine_code
from memcheck.frameworks.torch.data_parallel import uses_flat_parameters, uses_fsdp
from memcheck.job.recipe import keeps_full_states
from memcheck.job.types import DTYPE_BYTES, Optimizer, TrainingJob
from memcheck.models.types import Rough
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memcheck.frameworks.registry import ResidentBuffers


ADAM_LIKE = frozenset({"adamw", "adam"})


class Mesh(Record):
    """The ranks that share a parameter under FSDP2."""

    shards: int = 1
    ranks_per_node: int = 8


ALONE = Mesh()


class StepInBackward(Record):
    """An optimizer for every tensor, stepped by a hook after AccumulateGrad (torchtune ``training/memory.py``)."""

    optimizer: str
    implementation: str

    def temporaries(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the bytes that its step of one tensor takes for itself."""
        tensor = LocalTensor("", shape, trained=True, matrix=len(shape) > 1)
        return step_temporaries([(tensor, tensor.numel)], self.optimizer, self.implementation, dtype)


def step_in_backward(optimizer: Optimizer) -> StepInBackward | None:
    """The optimizer that steps in backward, if it does."""
    return StepInBackward(optimizer.name, optimizer.implementation) if optimizer.in_backward else None


def step_temporaries(
    trained: list[tuple[LocalTensor, int]], optimizer: str, implementation: str, dtype: str, mesh: Mesh = ALONE
) -> int:
    """Return the peak bytes of temporaries in the optimizer's step on one rank.

    ``trained``: each trained tensor with the number of its elements that this rank updates. ``optimizer``: its name in
    a plan. ``implementation``: ``fused`` | ``foreach`` | ``for-loop``. ``dtype``: of the optimizer states of tensors
    without a dtype of their own. ``mesh``: the ranks over which FSDP2 shards each tensor.
    """
    if optimizer in LOW_BITS:
        from memcheck.frameworks.torch.own_optimizers import low_bit_step

        return max((low_bit_step(n, optimizer) for _, n in trained), default=0)
    if not trained or implementation == "fused":
        return 0
    sizes = [rounded(n * DTYPE_BYTES[t.dtype or dtype]) for t, n in trained]
    if optimizer in ADAM_LIKE:
        # foreach computes one temporary for every tensor in a list (torch.optim.adam, _multi_tensor_adam)
        return sum(sizes) if implementation == "foreach" else _one_by_one(sizes)
    if optimizer == "adafactor":
        if implementation == "foreach":
            return sum(sizes)
        # a vector has `grad_squared` and the variance's clone, a matrix `update`
        copies = 2 if all(len(t.shape) == 1 for t, _ in trained) else 1
        return _one_by_one(sizes, copies)
    if optimizer == "muon":  # matrices are orthogonalised, AdamW steps on the others; one after the other
        adamw_bytes = [size for size, (t, _) in zip(sizes, trained, strict=True) if not orthogonalised(t)]
        from memcheck.frameworks.torch.own_optimizers import newton_schulz

        matrices = {(t, n) for t, n in trained if orthogonalised(t)}
        muon_bytes = (newton_schulz(t, n, DTYPE_BYTES[t.dtype or dtype], mesh) for t, n in matrices)
        return max(max(muon_bytes, default=0), _one_by_one(adamw_bytes))
    if optimizer == "lion":
        return 2 * max(sizes)  # lion-pytorch: update = exp_avg * beta1 + grad * (1 - beta1), then sign
    return 0  # sgd works in place; bitsandbytes' 8-bit and paged optimizers update in their kernels


def _one_by_one(sizes: list[int], copies: int = 2) -> int:
    """Return the peak bytes of temporaries of an optimizer that loops over its tensors (for-loop implementation).

    ``sizes``: bytes of a temporary of each tensor. Adam's ``denom = (exp_avg_sq.sqrt() / correction).add_(eps)`` makes
    two ``copies``, the root and the quotient, while ``denom`` still refers to the previous tensor's quotient. Adafactor
    makes one: ``update``, of ``row_var @ col_var``.
    """
    previous_sizes = (0, *sizes)
    return max((copies * size + previous for previous, size in zip(previous_sizes, sizes, strict=False)), default=0)


MATRICES = 3
"""Dimensions of stacked matrices."""


class Sharding(Record):
    """The number of ranks over which each kind of state is divided."""

    parameter_ranks: int
    gradient_ranks: int
    optimizer_ranks: int
    """Master weights and optimizer states."""
    uses_flat_buffers: bool
    """Flat buffers (ZeRO, distributed optimizer) instead of dim-0 shards per tensor."""


def expert_ways(job: TrainingJob, ways: int) -> int:
    """Return how many ranks share one copy of an expert. ``ways``: size of the sharding group of dense weights."""
    layout = job.layout
    if layout.expert * layout.expert_tensor == 1:
        return ways
    return max(1, ways * layout.tensor // (layout.expert * layout.expert_tensor))


def sharding(job: TrainingJob) -> Sharding:
    """Return over how many ranks the plan's ZeRO stage divides parameters, gradients and optimizer states.

    In torch.distributed stage 1 is ZeroRedundancyOptimizer, and 2 and 3 are FSDP.
    """
    stage, ranks = job.layout.zero_stage, job.layout.shard_group
    optimizer = ranks if stage >= 1 else 1
    if job.framework.has_sharding_engine:
        gradients, parameters = (ranks if stage >= 2 else 1), (ranks if stage >= 3 else 1)
        return Sharding(parameters, gradients, optimizer, uses_flat_buffers=True)
    if stage >= 2:
        return Sharding(ranks, ranks, ranks, uses_flat_buffers=uses_flat_parameters(job))
    return Sharding(1, 1, optimizer, uses_flat_buffers=False)


def shard_placement(job: TrainingJob, tensor: LocalTensor, dense_shards: int) -> tuple[LocalTensor, int]:
    """Return a tensor with the dimension along which FSDP2 shards it, and its number of shards.

    ``dense_shards``: the number of shards of a dense tensor. Some frameworks shard experts along a dimension of each
    matrix, because a rank has few experts. Sources:
    torchtitan ``distributed/fsdp.py`` (``expert_shard_placement``; ``models/llama4/infra/parallelize.py`` up to 0.2.2),
    which keeps them as [experts, outputs, inputs]; NeMo AutoModel ``components/moe/parallelizer.py``
    (``_moe_shard_placement``), which keeps them as [experts, inputs, outputs].
    """
    if not tensor.expert or dense_shards <= 1:
        return tensor, dense_shards
    shards, framework = expert_ways(job, dense_shards), job.framework
    cuts_matrices = framework.fsdp2.cuts_expert_matrices
    if not cuts_matrices or len(tensor.shape) != MATRICES or tensor.sharded_dim:
        return tensor, shards
    # cut without expert parallelism, too, since some release
    cuts_all = "expert matrices" in framework.since and not framework.predates(job.framework_version, "expert matrices")
    if job.layout.expert == 1 and not cuts_all:
        return tensor, shards
    if cuts_matrices == "always":
        return tensor._replace(sharded_dim=2), shards
    has_too_few_experts = shards > tensor.shape[0]
    return tensor._replace(sharded_dim=1) if has_too_few_experts else tensor, shards


def shard_numel_of(job: TrainingJob, tensor: LocalTensor, shards: int, flat: bool) -> int:
    """Return the elements of the largest shard of one tensor. ``flat``: a flat buffer is divided, not dimension 0."""
    tensor, shards = shard_placement(job, tensor, shards)
    if shards <= 1:
        return tensor.numel
    return ceil_div(tensor.numel, shards) if flat else shard_numel(tensor, shards)


def is_updated(job: TrainingJob, tensor: LocalTensor) -> bool:
    """Return whether the optimizer steps on a tensor.

    It does on every tensor with a gradient, except those that get one only as a part of FSDP1's flat parameter.
    """
    if not uses_flat_parameters(job):
        return tensor.trained
    from memcheck.frameworks.torch.flat_shard import is_stepped

    return is_stepped(job, tensor)


def state_bytes(job: TrainingJob, tensors: Iterable[LocalTensor]) -> StateBytes:
    """Return the bytes of some tensors on one rank: parameters, gradients, master weights and optimizer states.

    Each is divided as :func:`sharding` says. Offloaded states count as 0. FSDP1 (``flat``) shows the optimizer
    one-dimensional parts of a flat tensor.
    """
    recipe, shards = job.recipe, sharding(job)
    flat, unit_tensors = uses_flat_parameters(job), tuple(tensors)
    if flat:
        from memcheck.frameworks.torch.flat_shard import updated_numel
    masters_all = job.framework.has_master_adapters
    parameters = adapters = gradients = master = states = 0
    for t in unit_tensors:
        parameter_numel = shard_numel_of(job, t, shards.parameter_ranks, shards.uses_flat_buffers)
        size = weight_bytes(t, resident_dtype(job, t), parameter_numel)
        if ".lora_" in t.name:
            adapters += size
        else:
            parameters += size
        if not is_updated(job, t):
            continue
        own_dtype = None if masters_all else t.dtype
        # elements that this rank has: ZeRO-1 divides the optimizer's states alone, ZeRO-2 also gradients
        gradient_numel = optimizer_numel = parameter_numel
        if shards.gradient_ranks != shards.parameter_ranks:
            gradient_numel = optimizer_numel = shard_numel_of(job, t, shards.gradient_ranks, shards.uses_flat_buffers)
        if shards.optimizer_ranks != shards.gradient_ranks:
            optimizer_numel = shard_numel_of(job, t, shards.optimizer_ranks, shards.uses_flat_buffers)
        if flat:
            optimizer_numel = updated_numel(job, t, unit_tensors)
        gradients += rounded(gradient_numel * DTYPE_BYTES[own_dtype or recipe.gradients])
        if own_dtype is None and recipe.master != "none":
            master += rounded(optimizer_numel * DTYPE_BYTES[recipe.master])
        if job.optimizer.offload == "none":
            stepped = t._replace(shape=(t.numel,)) if flat else t
            states += optimizer_state_bytes(stepped, optimizer_numel, job.optimizer.name, states_dtype(job, t))
    if job.optimizer.offload != "none":
        master = 0
    if job.parameter_offload != "none":
        formats = [FORMATS.get(t.dtype or resident_dtype(job, t)) for t in unit_tensors]
        parameters = sum(f.bytes_beside(t.shape) for f, t in zip(formats, unit_tensors, strict=True) if f is not None)
        if offloads_states(job):
            # FSDP's CPU offload keeps all sharded parameters, gradients and optimizer states on the host
            adapters = gradients = master = states = 0
    return StateBytes(parameters, adapters, gradients, master, states)


def offloads_states(job: TrainingJob) -> bool:
    """Return whether gradients and optimizer states are offloaded with the parameters, as FSDP does."""
    return job.parameter_offload != "none" and not job.framework.has_sharding_engine


def own_adafactor(job: TrainingJob) -> bool:
    """Say whether Adafactor is transformers' own, whose states and steps are in fp32 (optimization.py)."""
    framework = job.framework
    return job.optimizer.name == "adafactor" and bool(framework.trainers) and not framework.has_sharding_engine


def states_dtype(job: TrainingJob, tensor: LocalTensor) -> str:
    """Return the dtype of one tensor's optimizer states: that of its master weights, or its own."""
    framework = job.framework
    if own_adafactor(job):
        return "fp32"
    if tensor.dtype is None or framework.has_master_adapters:
        return job.recipe.optimizer_states
    if keeps_full_states(job.optimizer, framework):
        return job.recipe.optimizer_states
    return tensor.dtype


def resident_dtype(job: TrainingJob, tensor: LocalTensor) -> str:
    """Return the dtype in which one tensor is stored between steps.

    With QLoRA, peft's prepare_model_for_kbit_training (peft/utils/other.py) casts what is not quantised, norms,
    embeddings and head, to fp32.
    """
    if job.prepares_kbit and not tensor.trained:
        return "fp32"
    return job.recipe.params


Tensors = Sequence[tuple[LocalTensor, ...]]
"""One entry for each unit; equal units share the tuple."""
UnitCounts = list[tuple[tuple[LocalTensor, ...], int]]


def resident_states(job: TrainingJob, resident: ResidentTensors) -> ResidentStates:
    """Return the resident bytes of a rank of a :func:`state_key` job, and what the optimizer's step adds to them.

    ``resident``: the tensors of the rank, unit by unit. An engine such as DeepSpeed adds buffers of its own.
    """
    units: Tensors = resident.units  # type: ignore[assignment]
    units_and_counts = unit_counts(resident)
    total = StateBytes()
    for tensors, count in units_and_counts:
        total = total.plus(state_bytes(job, tensors), count)
    engine = engine_of(job, units)
    operation = f"{job.optimizer.name} step ({job.optimizer.implementation})"
    partition = _partition(job, units)
    temporaries = 0 if job.optimizer.in_backward else _temporaries(job, units_and_counts, partition)
    if engine is not None:
        # ZeRO-3 partitions the persistent parameters again before it updates them
        temporaries += max(0, engine.step_temporaries - engine.persistent_params)
    if partition is not None and total.optimizer_states:  # 0 if the states are on the host
        _, states_of_rank = partition
        total = total._replace(optimizer_states=states_of_rank)
    elif job.optimizer.name == "sgd-momentum" and total.optimizer_states and job.layout.tensor > 1:
        total = total.plus(StateBytes(optimizer_states=momentum_of_table(job, units_and_counts)))
    return ResidentStates(
        components=_components(job, total, engine, units_and_counts),
        operation=operation,
        temporaries=temporaries,
        paged=_paged_bytes(job, units_and_counts),
        unfilled=None if engine is not None or job.expandable_segments else _unfilled_segments(job, units_and_counts),
    )


PACKED = 8
"""How many equal units are packed into allocator segments; what more of them leave unfilled is in proportion."""


def _unfilled_segments(job: TrainingJob, units_and_counts: list[tuple[tuple[LocalTensor, ...], int]]) -> Unfilled:
    """Return the bytes that allocator segments leave unfilled next to parameters, gradients and optimizer states.

    ``units_and_counts``: the tensors of each distinct unit, and the number of equal units. The blocks of at most
    ``PACKED`` equal units are packed into segments; the result is scaled to all of them.
    """
    shards, is_flat = sharding(job), uses_flat_parameters(job)
    unfilled_by_parameters = unfilled_by_states = all_states = 0
    for tensors, count in units_and_counts:
        # FSDP1 has one block for the states of a unit, others have one for each tensor
        states = [state_bytes(job, tensors)] if is_flat else [state_bytes(job, [t]) for t in tensors]
        parameters = [state.parameters + state.adapters for state in states]
        gradients = [state.gradients for state in states]
        if shards.gradient_ranks > 1:  # FSDP's sharded gradients of a unit are views of one block
            gradients = [sum(gradients)]
        moments: list[int] = []
        if shards.optimizer_ranks == shards.gradient_ranks:  # not ZeRO-1, where a rank has all states of some tensors
            for state in states:
                one_moment = state.optimizer_states // 2 // BLOCK_BYTES * BLOCK_BYTES  # of the two that Adam keeps
                moments += [one_moment, one_moment]
        packed = min(count, PACKED)
        unfilled_by_parameters += unfilled(parameters * packed) * count // packed
        unfilled_by_states += unfilled(gradients * packed + moments * packed) * count // packed
        all_states += (sum(gradients) + sum(moments)) * packed * count // packed
    return Unfilled(unfilled_by_parameters, unfilled_by_states, all_states)


def _paged_bytes(job: TrainingJob, units_and_counts: list[tuple[tuple[LocalTensor, ...], int]]) -> int:
    """Return the bytes of a rank's optimizer states in CUDA managed memory, as bitsandbytes' paged optimizers have."""
    name, shards = job.optimizer.name, sharding(job)
    if not name.startswith("paged-") or job.optimizer.offload != "none":
        return 0
    total = 0
    for tensors, count in units_and_counts:
        trained = (t for t in tensors if is_updated(job, t))
        total += count * sum(
            paged_bytes(shard_numel_of(job, t, shards.optimizer_ranks, shards.uses_flat_buffers), name) for t in trained
        )
    return total


def unit_counts(resident: ResidentTensors) -> list[tuple[tuple[LocalTensor, ...], int]]:
    """Return the tensors of each kind of unit, and how many units of that kind the rank has."""
    counts: dict[int, tuple[Any, int]] = {}
    for tensors, count in resident.runs:
        counts[id(tensors)] = (tensors, count + counts.get(id(tensors), (tensors, 0))[1])
    return list(counts.values())


def _components(
    job: TrainingJob, total: StateBytes, engine: ResidentBuffers | None, units_and_counts: UnitCounts
) -> Components:
    """Return a rank's resident bytes by component: states, reference models, DDP's buckets, an engine's buffers.

    ``total``: the trained model's states. ``engine``: DeepSpeed's buffers; None: no engine. ``units_and_counts``: the
    tensors of each distinct unit, and the number of equal units.
    """
    components = [
        ("parameters", total.parameters),
        ("adapters", total.adapters),
        ("master_weights", total.master_weights),
        ("optimizer_states", total.optimizer_states),
    ]
    if job.auxiliary_models:
        from memcheck.frameworks.torch.reference_models import companion_bytes

        components.append(("parameters", companion_bytes(job)))
    if not uses_fsdp(job):
        from memcheck.frameworks.torch.ddp import buckets, unused_gradients

        ddp = buckets(job)
        if ddp.exist:
            # DDP keeps its buckets from the first step on; with gradient_as_bucket_view they are the gradients
            size = total.gradients + unused_gradients(job, units_and_counts)
            components.append(("gradients" if ddp.are_gradients else "communication_buffers", size))
    if engine is not None:
        components += [
            ("parameters", engine.persistent_params),
            ("master_weights", engine.fp32_partition_copy),
            ("gradients", engine.persistent_gradients),
            ("communication_buffers", engine.from_start),
        ]
    return tuple(components)


Partition = tuple[list[LocalTensor], int]
"""The tensors that ZeroRedundancyOptimizer gives to the rank with most states, and those states' bytes."""


def _temporaries(
    job: TrainingJob, units_and_counts: list[tuple[tuple[LocalTensor, ...], int]], partition: Partition | None
) -> int:
    """Return the bytes of temporaries that the optimizer's step allocates on a rank; 0 if it runs on the host.

    ``units_and_counts``: the tensors of each distinct unit, and the number of equal units. ``partition``: the tensors
    that ZeroRedundancyOptimizer assigns to the rank; None: it is not used.
    """
    shards = sharding(job)
    if job.optimizer.offload != "none" or offloads_states(job):
        return 0
    trained: list[tuple[LocalTensor, int]] = []
    for tensors, count in units_and_counts:
        updated = [t for t in tensors if is_updated(job, t)]
        trained += count * [
            (t, shard_numel_of(job, t, shards.optimizer_ranks, shards.uses_flat_buffers)) for t in updated
        ]
    if uses_flat_parameters(job):
        from memcheck.frameworks.torch.flat_shard import updated_pieces

        trained = updated_pieces(job, units_and_counts, upper_bound=job.optimizer.implementation == "for-loop")
    if job.framework.has_master_adapters:
        trained = [(t._replace(dtype=None), numel) for t, numel in trained]
    if partition is not None:  # whole tensors, the rank's share of ZeRO-1
        tensors_of_rank, _ = partition
        trained = [(t, t.numel) for t in tensors_of_rank]
    name, implementation = job.optimizer.name, job.optimizer.implementation
    if own_adafactor(job):
        from memcheck.frameworks.torch.own_optimizers import adafactor_step

        item_bytes = [DTYPE_BYTES[t.dtype or job.recipe.params] for t, _ in trained]
        is_16_bit = [n_bytes == DTYPE_BYTES["bf16"] for n_bytes in item_bytes]
        return adafactor_step([(numel, narrow) for (_, numel), narrow in zip(trained, is_16_bit, strict=True)])
    mesh = Mesh(job.layout.shard_group if uses_fsdp(job) else 1, job.layout.gpus_per_node)
    temporaries = step_temporaries(trained, name, implementation, job.recipe.optimizer_states, mesh)
    if job.layout.tensor == 1:
        return temporaries

    return max(temporaries, embedding_gradient_clone(job, [t for t, _ in trained]))


def _partition(job: TrainingJob, units: Tensors) -> Partition | None:
    """Return the share of the rank with most optimizer states, if ZeroRedundancyOptimizer divides the optimizer."""
    if not divides_optimizer(job):
        return None
    return fullest_share(job, [t for unit in units for t in unit])[1:]


def divides_optimizer(job: TrainingJob) -> bool:
    """Whether ZeroRedundancyOptimizer divides the optimizer."""
    return job.layout.zero_stage == 1 and not job.framework.has_sharding_engine and job.layout.shard_group > 1


def fullest_share(job: TrainingJob, tensors: Iterable[LocalTensor]) -> tuple[int, list[LocalTensor], int]:
    """Return the rank whose optimizer states take most, its tensors, and the states' bytes.

    Whole tensors go to ranks, largest first to the emptiest rank (torch/distributed/optim/zero_redundancy_optimizer.py,
    _partition_parameters); of equal ones to the first.
    Muon's matrices and AdamW's other tensors are two optimizers, each with a partition of its own.
    """
    from heapq import heapreplace

    states_by_tensor: dict[int, int] = {}  # layers that are alike share their tensors
    trained = sorted((t for t in tensors if t.trained), key=lambda t: -t.numel)
    ranks = min(job.layout.shard_group, max(1, len(trained)))  # ranks beyond get none
    tensors_by_rank: list[list[LocalTensor]] = [[] for _ in range(ranks)]
    states_by_rank = [0] * ranks
    optimizers = [trained]
    if job.optimizer.name == "muon":
        optimizers = [[t for t in trained if orthogonalised(t)], [t for t in trained if not orthogonalised(t)]]
    for updated in optimizers:
        loads = [(0, rank) for rank in range(ranks)]  # a heap: the emptiest rank, the first of several
        for t in updated:
            if id(t) not in states_by_tensor:
                states_by_tensor[id(t)] = optimizer_state_bytes(t, t.numel, job.optimizer.name, states_dtype(job, t))
            load, rank = loads[0]
            tensors_by_rank[rank].append(t)
            states_by_rank[rank] += states_by_tensor[id(t)]
            heapreplace(loads, (load + t.numel, rank))
    rank = max(range(ranks), key=states_by_rank.__getitem__)
    return rank, tensors_by_rank[rank], states_by_rank[rank]


def engine_of(job: TrainingJob, units: Tensors, *, recomputes: bool | None = None) -> ResidentBuffers | None:
    """Return the buffers of the engine that runs the step, such as DeepSpeed; None without one.

    ``recomputes``: autograd saves nothing within a layer. None: sizes of gathered parameters are left out.
    """
    engine = engine_code(job.framework)
    return None if engine is None else engine.buffers(job, units, recomputes=recomputes)


TABLE = "embed_tokens.weight"


def embedding_gradient_clone(job: TrainingJob, trained: Sequence[LocalTensor]) -> int:
    """Return the bytes of the clone of this rank's rows of the embedding gradient in the optimizer's step.

    DTensor's first operation with the sharded table makes it (placement_types.py, _replicate_to_shard). 0 under FSDP2,
    which clones the rows before it reduces them.
    """
    if not _is_replicated(job):
        return 0
    return max((rounded(t.numel * DTYPE_BYTES[job.recipe.params]) for t in trained if t.name == TABLE), default=0)


def momentum_of_table(job: TrainingJob, units_and_counts: Sequence[tuple[tuple[LocalTensor, ...], int]]) -> int:
    """Return the bytes of SGD's momentum of a tensor-parallel embedding, beyond those of the rank's own rows.

    The momentum is a clone of the first gradient, which has the rows of the whole table (torch ``optim/sgd.py``,
    _single_tensor_sgd: ``buf = grad.detach().clone()``). ``units_and_counts``: the rank's units with their tensors.
    """
    if not _is_replicated(job) or isinstance(job.architecture, Rough):
        return 0
    element_bytes, rows = DTYPE_BYTES[job.recipe.optimizer_states], job.architecture.table_rows
    tables = [t for tensors, _ in units_and_counts for t in tensors if t.trained and t.name == TABLE]
    return sum(rounded(rows * t.shape[1] * element_bytes) - rounded(t.numel * element_bytes) for t in tables)


def _is_replicated(job: TrainingJob) -> bool:
    """Return whether the gradient of a tensor-parallel embedding stays whole on every rank until the optimizer."""
    framework = job.framework
    divided = job.layout.tensor > 1 and not uses_fsdp(job) and not framework.has_sharding_engine
    return divided and framework.style.runs_transformers_modules
