"""Megatron-core's own modules and buffers."""

from __future__ import annotations

from memcheck.accounts.ranks import Components, ResidentStates
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.megatron import buffers, fsdp
from memcheck.frameworks.megatron.buffers import Counted, require_muon_supported
from memcheck.frameworks.megatron.embedding import embedding_forward
from memcheck.frameworks.megatron.head import head_forward
from memcheck.frameworks.megatron.layers import megatron_layers
from memcheck.frameworks.megatron.own_code import OwnCode
from memcheck.frameworks.megatron.workspaces import ChunkContents, Device, workspaces
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


def always(
    job: TrainingJob, architecture: Architecture, setting: Setting, contents: ChunkContents, device: Device
) -> Components:
    """Return bytes by component that are live all step on a rank: workspaces, rotary tables and the batch.

    ``contents``: the layers, tensors and ends of the model on the rank.
    """
    return workspaces(job, architecture, setting, contents, device).components()


def attention_mask(job: TrainingJob, _setting: Setting) -> int:
    """Return the dense causal mask of the data loader, one byte per pair of tokens
    (create_attention_mask_in_dataloader).
    """
    if not job.option("create_attention_mask_in_dataloader"):
        return 0
    return rounded(job.micro_batch_size * job.sequence_length * job.sequence_length)


def resident(job: TrainingJob, tensors: list[Counted]) -> ResidentStates:
    """Return the bytes of parameters, gradients, master weights and optimizer states on one rank, and the step's
    temporaries.

    They are in DDP's contiguous buffers, or in Megatron-FSDP's. ``tensors``: the rank's parameters with their counts.
    """
    if job.optimizer.name == "muon":
        require_muon_supported(job)
    sharded = fsdp.is_sharded(job)
    state_bytes = fsdp.state_bytes(job, tensors) if sharded else buffers.state_bytes(job, tensors)
    sharded_gradient_dtype = fsdp.sharded_gradient(job) if sharded else None
    names = ("parameters", "gradients", "master_weights", "optimizer_states")
    components = tuple((name, getattr(state_bytes, name)) for name in names)
    return ResidentStates(components, "optimizer step", buffers.step_temporaries(job, tensors, sharded_gradient_dtype))


CODE = OwnCode(
    layers=megatron_layers,
    embedding=embedding_forward,
    head=head_forward,
    setting=lambda _job, _architecture, setting: setting,
    side_buffers=always,
    forward_only=attention_mask,
    resident=resident,
    position=lambda _job, position: position,
    remaps=True,
    holds_inputs=True,
)
