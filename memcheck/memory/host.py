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
from memcheck.accounts.ranks import Components
from memcheck.accounts.state import weight_bytes
from memcheck.frameworks.registry import NO_SAVING, HostMemory, Saving, stack_of, state_bytes
from memcheck.frameworks.torch.resident import resident_dtype
from memcheck.job.keys import host_key
from memcheck.job.training import ON_HOST
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Rough


def host_moments(job: TrainingJob, total: int, trained: int, activations: int, room: int) -> tuple[HostMoment, ...]:
    """Return the host memory of one node, in bytes by component, at each moment of a run that needs any.

    The moments are load, init, step and save. ``total`` and ``trained``: parameters of the whole model, adapters
    included. ``activations``: bytes that the GPUs of a node offload to host memory during a step. ``room``: bytes of a
    GPU without its context.
    """
    return _moments(host_key(job), total, trained, activations, room)


@lru_cache(maxsize=2048)
def _moments(job: TrainingJob, total: int, trained: int, activations: int, room: int) -> tuple[HostMoment, ...]:
    """Return what :func:`host_moments` does, from the parts of a job that host memory depends on (``host_key``)."""
    host = stack_of(job.framework).host_memory
    moments = [
        HostMoment("load", _where(job), loading(job, total, host)),
        HostMoment("init", "DeepSpeed laying out flat buffers", host.laid_out(job, total, room)),
    ]
    states: Components = ()
    if job.optimizer.offload != "none" or job.parameter_offload != "none":
        states = host.states(job)
    kept = (("activations", activations),) if activations else ()
    moments.append(HostMoment("step", "holding what is offloaded", (*states, *kept)))
    writes, staged = saving(job, total, trained, host)
    moments.append(HostMoment("save", writes, _sum(states, staged) if staged else ()))
    return tuple(moment for moment in moments if moment.bytes)


def _where(job: TrainingJob) -> str:
    """Say, for a report's row, how many processes of a node build the model in its host memory."""
    if job.initialization.place == "rank0":
        return "one process of the node making the model"
    processes = job.layout.gpus_per_node
    return "one process making the model" if processes == 1 else f"{processes} processes making the model"


def _sum(first: Components, second: Components) -> Components:
    """Add the bytes of two lists of components, name by name."""
    total = dict(first)
    for name, count in second:
        total[name] = total.get(name, 0) + count
    return tuple(total.items())


def loading(job: TrainingJob, total: int, host: HostMemory) -> Components:
    """Return the host bytes of one node while the model is initialized; empty if it is built on GPUs or ``meta``.

    ``total``: parameters of the model. One process builds it (``rank0``), or each process of the node.
    """
    device = job.initialization.place
    if device not in ON_HOST:
        return ()
    processes = job.layout.gpus_per_node if device == "host" else 1
    full_bytes = host.loaded(job, total) * DTYPE_BYTES[job.recipe.params]
    bytes_per_process = quantised(job) if job.base_format else full_bytes
    total_bytes = processes * bytes_per_process
    return (("parameters", total_bytes),) if total_bytes else ()


def quantised(job: TrainingJob) -> int:
    """Return the host bytes of a whole quantised model, without its adapters, in one process.

    transformers quantises it on the GPU layer by layer and moves it to host memory, from where FSDP and DeepSpeed
    shard it (transformers pull request 29587).
    """
    from memcheck.frameworks.torch.tower_tensors import model_tensors

    model = job.architecture
    if isinstance(model, Rough):
        return 0  # has no 4-bit form: MEM025
    tensors = [tensor for of_unit in model_tensors(job, model) for tensor in of_unit]
    return sum(weight_bytes(tensor, resident_dtype(job, tensor)) for tensor in tensors if ".lora_" not in tensor.name)


def saving(job: TrainingJob, total: int, trained: int, host: HostMemory) -> Saving:
    """Return how a checkpoint is saved, in words, and the host bytes that one node needs for it by component.

    Bytes of offloaded states, which are resident there anyway, are not included. ``total`` and ``trained``: parameters
    of the whole model.
    """
    if job.checkpoint.state_dict == "none" or job.base_format:
        return NO_SAVING  # of a quantised model only the adapters are written
    return host.saving(job, state_bytes(job, total, trained))
