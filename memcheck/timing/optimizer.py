"""The optimizer's step: memory traffic on the GPU, or transfers and a step on the host."""

from __future__ import annotations

from memcheck.job.types import DTYPE_BYTES, Assumption, TrainingJob
from memcheck.record import Record
from memcheck.timing.rates import GB, Rates
from memcheck.timing.types import RooflineSeconds

ACCESSES = {
    "adamw": 20,
    "adam": 20,
    "paged-adamw": 20,
    "sgd": 3,
    "sgd-momentum": 6,
    "lion": 9,
    "adafactor": 12,
    "muon": 9,
    "te-fused-adam": 9,
}
"""Elements read and written per parameter, one operation after the other (``torch/optim/adamw.py`` _multi_tensor_adamw:
mul_ 2, lerp_ 3, mul_ 2, addcmul_ 3, sqrt 2, div_ 2, add_ 2, addcdiv_ 4; the others counted in the same way).
"""
FUSED = {
    "adamw": 7,
    "adam": 7,
    "paged-adamw": 7,
    "sgd": 3,
    "sgd-momentum": 5,
    "lion": 5,
    "adafactor": 12,
    "muon": 9,
    "te-fused-adam": 9,
}
"""In one kernel: parameter, gradient and states are read, parameter and states written; TransformerEngine's fp32 master
weights, too."""
EIGHT_BIT = {
    "adamw-8bit": 2,
    "paged-adamw-8bit": 2,
    "lion-8bit": 1,
    "adamw-torchao-8bit": 2,
    "adamw-torchao-fp8": 2,
    "adamw-torchao-4bit": 1,
    "flash-adamw": 2,
    "flash-adamw-32": 2,
}
"""States of one byte, each read and written; two of half a byte are one."""

MUON_PRODUCTS = 15
"""Newton-Schulz: five iterations of three matrix products (Jordan et al. 2024)."""

HOST_ADAM_PER_SECOND = 4.0e9
"""Parameters per second and node that DeepSpeed's CPU-Adam updates: 2.57 s for 10 B (Ren et al. 2021, table 4)."""
TORCH_SLOWER = 5.1
"""How many times longer torch's own takes there, one operation after the other: 5.1 to 6.5 for 1 to 10 B (DeepSpeed
``docs/_pages/training.md``, CPU-Adam). Its fused kernel is one loop over parameter and states, as CPU-Adam is
(``aten/src/ATen/native/cpu/FusedAdamKernel.cpp``), and what Megatron calls (``core/optimizer/__init__.py``)."""
NVME_GBS = 7.0
"""One PCIe 4 x4 drive per GPU, sequential, one direction."""
SWAPPED_BYTES = 12
"""Bytes per parameter on NVMe between steps: fp32 master weight and Adam's two fp32 moments."""


def step_seconds(job: TrainingJob, parameters: float, rates: Rates, muon_side: int) -> RooflineSeconds:
    """Compute the seconds of the optimizer's step on the GPU, with clipping and zeroing of the gradients.

    ``parameters``: trained parameters that this rank updates. ``muon_side``: rows of one of Muon's matrices, taken as
    square.
    """
    name = job.optimizer.name
    gradient_bytes = DTYPE_BYTES[job.recipe.gradients]
    # clipping reads every gradient once for its norm, and reads and writes it to scale it; zeroing writes it
    bytes_per_parameter = 3.0 * gradient_bytes if job.clip_grad_norm else 0.0
    bytes_per_parameter += gradient_bytes
    if on_host(job):
        return RooflineSeconds(arithmetic=0.0, memory=parameters * bytes_per_parameter / rates.hbm_bandwidth)
    bytes_per_parameter += _update_bytes(job)
    memory = parameters * bytes_per_parameter / rates.hbm_bandwidth
    if name != "muon":
        return RooflineSeconds(arithmetic=0.0, memory=memory)
    # Newton-Schulz: each product of n x n matrices, n^2 parameters, takes 2 n^3 FLOPs
    newton_schulz = 2.0 * MUON_PRODUCTS * muon_side * parameters / rates.matmul_flops
    return RooflineSeconds(arithmetic=newton_schulz, memory=memory)


def _update_bytes(job: TrainingJob) -> float:
    """Count the bytes per parameter that the optimizer reads and writes to update the weight and its states."""
    recipe, name = job.recipe, job.optimizer.name
    weight_bytes = DTYPE_BYTES[recipe.params if recipe.master == "none" else recipe.master]
    state_bytes = DTYPE_BYTES[recipe.optimizer_states]
    if name in EIGHT_BIT:  # weight and states are read and written, the gradient is read
        moved = 2.0 * weight_bytes + DTYPE_BYTES[recipe.gradients] + 2.0 * EIGHT_BIT[name]
    else:
        accesses = FUSED[name] if job.optimizer.implementation == "fused" else ACCESSES[name]
        moved = float(accesses * max(weight_bytes, state_bytes))
    if recipe.master != "none":
        moved += DTYPE_BYTES[recipe.params]  # the copy in the working precision is written
    return moved


def on_host(job: TrainingJob) -> bool:
    """Whether the optimizer runs on the host: offloaded itself, or with FSDP2's parameters, since its CPUOffloadPolicy
    keeps gradients and states there ("the optimizer step runs on CPU": torch ``fsdp/_fully_shard/_fsdp_api.py``).
    """
    sharded = job.framework.data_parallel == "torch" and job.layout.zero_stage == 3
    return job.optimizer.offload != "none" or (sharded and job.parameter_offload != "none")


class OffloadTime(Record):
    """The time per step of offloading, and the rates that were assumed."""

    seconds: float
    assumptions: tuple[Assumption, ...]


def offload_seconds(job: TrainingJob, parameters: float, shard_bytes: float, fetches: int, rates: Rates) -> OffloadTime:
    """Compute the seconds per step of offloading: transfers over PCIe and from NVMe, and an optimizer on the host.

    ``parameters``: trained parameters that this rank updates; ``shard_bytes``: bytes of this rank's shard of all
    parameters; ``fetches``: how often the shard is copied to the GPU in a step.
    """
    seconds, assumed = 0.0, []
    recipe = job.recipe
    if on_host(job):  # gradients go to the host, updated parameters come back
        transferred = parameters * (DTYPE_BYTES[recipe.gradients] + DTYPE_BYTES[recipe.params])
        seconds += transferred / rates.host_bandwidth
        one_loop = job.framework.optimizers.own_kernels or job.optimizer.implementation == "fused"
        rate = HOST_ADAM_PER_SECOND if one_loop else HOST_ADAM_PER_SECOND / TORCH_SLOWER
        seconds += parameters * job.layout.gpus_per_node / rate
        why = "DeepSpeed's CPU-Adam on two sockets (Ren et al. 2021, table 4)"
        if not one_loop:
            why = f"torch's, operation by operation: {TORCH_SLOWER} times slower than {why}"
        assumed.append(Assumption("the optimizer on the host", f"{rate:.1e} parameters/s a node", why))
    if job.parameter_offload != "none":
        seconds += shard_bytes * fetches / rates.host_bandwidth
    nvme_bytes = 0.0
    if job.optimizer.offload == "nvme":
        nvme_bytes += 2.0 * parameters * SWAPPED_BYTES  # read and written
    if job.parameter_offload == "nvme":
        nvme_bytes += shard_bytes * fetches
    if nvme_bytes:
        seconds += nvme_bytes / (NVME_GBS * GB)
        assumed.append(Assumption("NVMe drives", f"{NVME_GBS} GB/s per GPU", "one PCIe 4 drive per GPU"))
    return OffloadTime(seconds, tuple(assumed))
