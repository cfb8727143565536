"""Host memory under Megatron-LM: each rank makes its own part, and moves what it writes."""

from __future__ import annotations

from memcheck.autograd.tensor import ceil_div
from memcheck.frameworks.registry import HostMemory, ModelStateBytes, Saving, optimizer_on_host
from memcheck.job.types import TrainingJob


def loaded(job: TrainingJob, total: int) -> int:
    """Return the bytes of host memory that each rank fills when it creates its part of the model's ``total`` bytes.

    Source: ``--use-cpu-initialization`` (tensor_parallel/layers.py).
    """
    return ceil_div(total, job.layout.tensor * job.layout.pipeline)


def saving(job: TrainingJob, model_bytes: ModelStateBytes) -> Saving:
    """Return what moves to a node's host memory when a checkpoint is saved: a description, and bytes by component.

    Under torch_dist every rank moves what it writes. In the legacy format the first rank of each data-parallel group
    gathers the optimizer's states of its model shard. ``model_bytes``: bytes of the whole model's states.
    """
    layout = job.layout
    if job.checkpoint.state_dict == "sharded":
        if job.optimizer.offload != "none":  # offloaded states are in host memory already
            model_bytes = model_bytes._replace(master_weights=0, optimizer_states=0)
        components = {
            name: model_total * layout.gpus_per_node // layout.world_size
            for name, model_total in model_bytes._asdict().items()
        }
        description = "every rank moving what it writes to the host"
        return description, tuple((name, n_bytes) for name, n_bytes in components.items() if n_bytes)
    stages_per_node = max(1, layout.gpus_per_node * layout.pipeline // layout.world_size)
    gathered_shards = min(layout.gpus_per_node, layout.tensor * stages_per_node)
    model_shards = layout.tensor * layout.pipeline
    master = 0
    if job.checkpoint.optimizer:
        master = model_bytes.master_weights or model_bytes.parameters  # fp32 parameters are their own master copy
    components = {
        "master_weights": master * gathered_shards // model_shards,
        "optimizer_states": model_bytes.optimizer_states * gathered_shards // model_shards,
    }
    description = "rank 0 of each data-parallel group gathering the optimizer states"
    return description, tuple((name, n_bytes) for name, n_bytes in components.items() if n_bytes)


HOST = HostMemory(loaded=loaded, laid_out=lambda _job, _total, _room: (), states=optimizer_on_host, saving=saving)
