"""Host memory of one node from loading the model to saving it: the highest moment decides, as on the GPU.

Counted is what belongs to a process alone (anonymous and pinned memory): what makes the kernel's out-of-memory killer
act. Pages of mapped safetensors files are not: the processes of a node share them, and the kernel drops them when
memory is short.

Loading. transformers 5.23 builds on the meta device and then reads tensor by tensor (core_model_loading.py,
``convert_and_load_state_dict_in_model``). Without a device map the tensors stay in host memory. safetensors maps the
files, and ``tensor[...].to(dtype)`` of a tensor that has that dtype is the mapping itself; every other dtype is a copy
in each process, as are the experts of a mixture that are stacked on the way. ``cpu_ram_efficient_loading`` spares
nothing there: this version reads the checkpoint on every rank. accelerate (utils/fsdp_utils.py,
``fsdp2_prepare_model``) casts trained parameters to fp32 before it shards them, on the host, and keeps the cast model
until all are sharded.

Saving. transformers 5.23 trainer.py (``save_model``, ``_save_optimizer_and_scheduler``), accelerate 1.15
accelerator.py (``get_state_dict``) and utils/fsdp_utils.py (``save_fsdp_optimizer``), torch 2.13
distributed/_state_dict_utils.py (``_iterate_state_dict``: each gathered tensor goes to the host on rank 0 before the
next), distributed/checkpoint/staging.py; DeepSpeed runtime/engine.py (``_zero3_consolidated_16bit_state_dict``);
torchtune training/_distributed.py (``gather_cpu_state_dict``); Megatron-core
dist_checkpointing/strategies/filesystem_async.py (``preload_tensors``, with and without --async-save) and
optimizer/distrib_optimizer.py (``get_parameter_state_dp_zero``).

What goes to a file one tensor at a time (torch.save of tensors on a GPU, torch.distributed.checkpoint without async) is
not counted: it holds one tensor, or 10 MB ahead.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.estimate import HostMoment
from memcheck.accounts.state import STATES_PER_PARAMETER
from memcheck.frameworks.torch.states import stepless
from memcheck.job.training import ON_HOST
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.parameters import parameters_by_group
from memcheck.models.types import Rough
from memcheck.record import Record

Components = tuple[tuple[str, int], ...]
STACKED_IN_FILES = ("dbrx", "gpt_oss", "llama4_text", "llama4")
"""Model types whose checkpoints hold experts as one tensor: nothing is stacked while they load."""
LOADED_BY_TRANSFORMERS = ("huggingface", "pytorch", "deepspeed")
SHARD_BYTES = 50 * 10**9
"""transformers writes files of at most 50 GB (save_pretrained, max_shard_size), each from copies of all its tensors."""
NOTHING: tuple[str, Components] = ("", ())


def host_moments(job: TrainingJob, total: int, trained: int, activations: int, room: int) -> tuple[HostMoment, ...]:
    """Every moment in which the node's memory holds anything, in the order of a run.

    ``total`` and ``trained``: parameters of the whole model, adapters included. ``activations``: bytes that the GPUs of
    a node keep in host memory during a step. ``room``: bytes of a GPU beside its context.
    """
    return _moments(stepless(job), total, trained, activations, room)


@lru_cache(maxsize=2048)
def _moments(job: TrainingJob, total: int, trained: int, activations: int, room: int) -> tuple[HostMoment, ...]:
    found: list[HostMoment] = []
    if job.initialization.place in ON_HOST or job.framework == "deepspeed":
        found.append(HostMoment("load", _where(job), loading(job, total)))
        found.append(HostMoment("init", "DeepSpeed laying out flat buffers", engine_init(job, total, room)))
    states: Components = ()
    if job.optimizer.offload != "none" or job.parameter_offload != "none":
        from memcheck.memory.host_states import host_states

        states = host_states(job)
    kept = (("activations", activations),) if activations else ()
    found.append(HostMoment("step", "holding what is offloaded", (*states, *kept)))
    if job.checkpoint.state_dict != "none":
        writes, staged = saving(job, total, trained)
        found.append(HostMoment("save", writes, _sum(states, staged) if staged else ()))
    return tuple(moment for moment in found if moment.bytes)


def _where(job: TrainingJob) -> str:
    if job.initialization.place == "rank0":
        return "one process of the node making the model"
    return f"{job.layout.gpus_per_node} processes making the model"


def _sum(one: Components, other: Components) -> Components:
    """Component by component."""
    found = dict(one)
    for name, count in other:
        found[name] = found.get(name, 0) + count
    return tuple(found.items())


def loading(job: TrainingJob, total: int) -> tuple[tuple[str, int], ...]:
    """What the processes of one node hold when the model is made. ``total``: its parameters."""
    place, weights = job.initialization
    if place not in ON_HOST:
        return ()
    dtype, processes = job.recipe.params, job.layout.gpus_per_node if place == "host" else 1
    size = DTYPE_BYTES[dtype]
    if job.framework == "megatron":
        # --use-cpu-initialization makes each rank's own part (tensor_parallel/layers.py)
        total = -(-total // (job.layout.tensor * job.layout.pipeline))
        return (("parameters", processes * total * size),)
    if weights == dtype:
        total = _stacked(job)
    return (("parameters", processes * total * size),) if total else ()


def _stacked(job: TrainingJob) -> int:
    """Parameters of experts that transformers stacks (conversion_mapping.py, MergeModulelist)."""
    model = job.architecture
    if isinstance(model, Rough) or job.framework not in LOADED_BY_TRANSFORMERS:
        return 0
    return 0 if model.model_type in STACKED_IN_FILES else parameters_by_group(model).get("experts", 0)


def engine_init(job: TrainingJob, total: int, room: int) -> tuple[tuple[str, int], ...]:
    """What DeepSpeed moves to the host to lay its parameters out anew.

    Stages 1 and 2 flatten a group on the GPU if its memory has room for a second copy, else on the host, where tensors
    and flat buffer are alive together (zero/stage_1_and_2.py, ``flatten_on_accelerator``); stage 3 moves every rank's
    partition through host memory (zero/utils.py, ``defragment``). ``room``: bytes of a GPU beside its context.
    """
    layout, size = job.layout, DTYPE_BYTES[job.recipe.params]
    if job.framework != "deepspeed" or layout.zero_stage == 0 or job.method != "full":
        return ()
    if layout.zero_stage == 3:
        if job.parameter_offload != "none":
            return ()
        partition = -(-total // (layout.tensor * max(1, layout.shard_group)))
        return (("parameters", layout.gpus_per_node * partition * size),)
    rank = -(-total // layout.tensor) * size
    if 2 * rank <= room:
        return ()
    return (("parameters", layout.gpus_per_node * 2 * rank),)


class ModelStateBytes(Record):
    """Bytes of the whole model's state."""

    parameters: int
    master_weights: int
    optimizer_states: int


def saving(job: TrainingJob, total: int, trained: int) -> tuple[str, Components]:
    """What happens, and what the processes of one node hold for it beside what rests there.

    ``total`` and ``trained``: parameters of the whole model.
    """
    kind = job.checkpoint.state_dict
    whole = sizes(job, total, trained)
    if kind == "none" or job.method == "qlora":
        return NOTHING  # of a quantised model only the adapters are written
    if job.framework == "megatron":
        return _megatron(job, whole)
    if job.framework == "deepspeed":
        return _deepspeed(job, whole)
    return _gathered(job, whole) if kind == "full" else _sharded(job, whole)


def sizes(job: TrainingJob, total: int, trained: int) -> ModelStateBytes:
    """Bytes of parameters, master weights and optimizer states; the latter as far as they are saved."""
    recipe = job.recipe
    states = STATES_PER_PARAMETER[job.optimizer.name] * trained
    item = 1 if job.optimizer.name.endswith("8bit") else DTYPE_BYTES[recipe.optimizer_states]
    saved = job.checkpoint.optimizer
    return ModelStateBytes(
        parameters=total * DTYPE_BYTES[recipe.params],
        master_weights=trained * DTYPE_BYTES[recipe.master] if saved and recipe.master != "none" else 0,
        optimizer_states=states * item if saved else 0,
    )


def _gathered(job: TrainingJob, whole: ModelStateBytes) -> tuple[str, Components]:
    """A full state dict on rank 0. Without sharding it is there already: only safetensors copies a file's tensors."""
    if job.checkpoint.offload == "none":
        return NOTHING
    if job.layout.zero_stage < 2 or job.layout.shard_group == 1:
        if job.framework != "huggingface":
            return NOTHING
        return "rank 0 writing the model", (("parameters", min(whole.parameters, SHARD_BYTES)),)
    model, states = ("parameters", whole.parameters), ("optimizer_states", whole.optimizer_states)
    if job.framework != "huggingface":
        return "rank 0 gathering model and optimizer states", (model, states)
    # the model is written and let go of before the optimizer is gathered
    if whole.optimizer_states > whole.parameters:
        return "rank 0 gathering the optimizer states", (states,)
    return "rank 0 gathering the model", (model,)


def _sharded(job: TrainingJob, whole: ModelStateBytes) -> tuple[str, Components]:
    """Every rank's own part: accelerate moves it to the host, torch.distributed.checkpoint only to save in parallel."""
    model = ("parameters", _of_node(job, whole.parameters))
    states = ("optimizer_states", _of_node(job, whole.optimizer_states))
    if job.checkpoint.asynchronous:
        return "every rank copying its part", (model, states)
    if job.framework != "huggingface":
        return NOTHING
    # accelerate's ShardedStateDictConfig(offload_to_cpu=True): the model, then the optimizer, unless they are there
    if job.parameter_offload != "none":
        return NOTHING
    return "every rank copying its part", (max(model, states, key=lambda c: c[1]),)


def _deepspeed(job: TrainingJob, whole: ModelStateBytes) -> tuple[str, Components]:
    if job.layout.zero_stage == 3:
        if job.checkpoint.state_dict != "full":
            return NOTHING
        return "rank 0 gathering the 16-bit weights", (("parameters", whole.parameters),)
    if job.checkpoint.state_dict != "full":
        return NOTHING
    # Trainer.save_model calls get_state_dict on every rank, which clones to the host (clone_tensors_for_torch_save)
    count = job.layout.gpus_per_node
    per_rank = -(-whole.parameters // job.layout.tensor)
    return f"{count} processes cloning the model's state dict", (("parameters", count * per_rank),)


def _megatron(job: TrainingJob, whole: ModelStateBytes) -> tuple[str, Components]:
    """torch_dist: every rank moves the part that it writes to the host; the legacy format: rank 0 of a group, all."""
    layout = job.layout
    if job.checkpoint.state_dict == "sharded":
        if job.optimizer.offload != "none":  # is there already
            whole = whole._replace(master_weights=0, optimizer_states=0)
        share = layout.gpus_per_node, layout.world_size
        parts = tuple((name, count * share[0] // share[1]) for name, count in whole._asdict().items())
        return "every rank moving what it writes to the host", tuple(part for part in parts if part[1])
    stages = max(1, layout.gpus_per_node * layout.pipeline // layout.world_size)  # that share a node
    first = min(layout.gpus_per_node, layout.tensor * stages)
    models = layout.tensor * layout.pipeline
    master = (whole.master_weights or whole.parameters) if job.checkpoint.optimizer else 0
    states = whole.optimizer_states * first // models
    found = (("master_weights", master * first // models), ("optimizer_states", states))
    return "rank 0 of each data-parallel group gathering the optimizer states", tuple(part for part in found if part[1])


def _of_node(job: TrainingJob, n_bytes: int) -> int:
    """What the ranks of one node keep of a sharded state; groups that replicate it keep as many copies."""
    layout = job.layout
    copies = max(1, layout.data * layout.context // max(1, layout.shard_group))
    return n_bytes * copies * layout.gpus_per_node // layout.world_size
