"""Host memory under Megatron-LM: each rank makes its own part, and moves what it writes."""

from __future__ import annotations

from memcheck.frameworks.host import HostMemory, ModelStateBytes, Saving, optimizer_on_host
from memcheck.job.types import TrainingJob


def loaded(job: TrainingJob, total: int) -> int:
    """``--use-cpu-initialization`` makes each rank's own part (tensor_parallel/layers.py)."""
    return -(-total // (job.layout.tensor * job.layout.pipeline))


def saving(job: TrainingJob, whole: ModelStateBytes) -> Saving:
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


HOST = HostMemory(loaded=loaded, laid_out=lambda _job, _total, _room: (), states=optimizer_on_host, saving=saving)
