"""What the engine asks of transformers' Trainer: torch's data parallelism around its layers.

Host memory under transformers' Trainer and accelerate while they save.
"""

from __future__ import annotations

from memcheck.frameworks.registry import NO_SAVING, ModelStateBytes, Saving, of_node
from memcheck.frameworks.torch.stack import HOST as TORCH
from memcheck.frameworks.torch.stack import STACK as TORCH_STACK
from memcheck.frameworks.torch.stack import is_sharded
from memcheck.job.types import TrainingJob

SHARD_BYTES = 50 * 10**9
"""transformers writes files of at most 50 GB (save_pretrained, max_shard_size), each from copies of all its tensors."""


def saving(job: TrainingJob, whole: ModelStateBytes) -> Saving:
    """The model is written and freed before the optimizer is gathered or copied."""
    return _gathered(job, whole) if job.checkpoint.state_dict == "full" else _sharded(job, whole)


def _gathered(job: TrainingJob, unsharded: ModelStateBytes) -> Saving:
    """Return the host memory of rank 0 while it writes a full state dict: a label, and bytes by component.

    ``unsharded``: bytes of the whole model's states. Without sharding the state dict refers to existing tensors, and
    only safetensors copies the tensors of one file at a time (``SHARD_BYTES``).
    """
    if job.checkpoint.offload == "none":
        return NO_SAVING
    if not is_sharded(job):
        return "rank 0 writing the model", (("parameters", min(unsharded.parameters, SHARD_BYTES)),)
    if unsharded.optimizer_states > unsharded.parameters:
        return "rank 0 gathering the optimizer states", (("optimizer_states", unsharded.optimizer_states),)
    return "rank 0 gathering the model", (("parameters", unsharded.parameters),)


def _sharded(job: TrainingJob, unsharded: ModelStateBytes) -> Saving:
    """Return what all ranks of a node copy to its host to save a sharded checkpoint: a description, and bytes.

    accelerate saves with ShardedStateDictConfig(offload_to_cpu=True). ``unsharded``: bytes of the whole model's states.
    Model and optimizer are saved one after the other, unless saving is asynchronous.
    """
    model = ("parameters", of_node(job, unsharded.parameters))
    states = ("optimizer_states", of_node(job, unsharded.optimizer_states))
    if job.checkpoint.asynchronous:
        return "every rank copying its part", (model, states)
    if job.parameter_offload != "none":  # the shards are in host memory already
        return NO_SAVING
    return "every rank copying its part", (max(model, states, key=lambda component: component[1]),)


HOST = TORCH._replace(saving=saving)


STACK = TORCH_STACK._replace(host_memory=HOST)
