"""The optimizer's step: memory traffic on the GPU, or transfers and a step on the host."""

from __future__ import annotations

from memcheck.job.types import DTYPE_BYTES, Assumption, TrainingJob
from memcheck.timing.rates import GB, Rates

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


def step_seconds(job: TrainingJob, parameters: float, rates: Rates, muon_side: int) -> tuple[float, float]:
    """Compute the seconds of the optimizer's step that arithmetic bounds, and those that memory traffic bounds.

    ``parameters``: trained parameters that this rank updates. ``muon_side``: rows of one of Muon's matrices, taken as
    square. Clipping reads every gradient once for its norm, and reads and writes it to scale it.
    """
    recipe, name = job.recipe, job.optimizer.name
    gradient = DTYPE_BYTES[recipe.gradients]
    clip = 3.0 * gradient if job.clip_grad_norm else 0.0
    zero_grad = float(gradient)
    if on_host(job):
        return 0.0, parameters * (clip + zero_grad) / rates.hbm_bandwidth
    weight = DTYPE_BYTES[recipe.params if recipe.master == "none" else recipe.master]
    state = DTYPE_BYTES[recipe.optimizer_states]
    if name in EIGHT_BIT:
        # weight and states are read and written, the gradient is read
        bytes_per_parameter = 2.0 * weight + gradient + 2.0 * EIGHT_BIT[name]
    else:
        one_kernel = job.optimizer.implementation == "fused"
        bytes_per_parameter = float((FUSED if one_kernel else ACCESSES)[name] * max(weight, state))
    if recipe.master != "none":
        bytes_per_parameter += DTYPE_BYTES[recipe.params]  # the copy in the working precision is written
    memory = parameters * (bytes_per_parameter + clip + zero_grad) / rates.hbm_bandwidth
    if name != "muon":
        return 0.0, memory
    # Newton-Schulz: each product of n x n matrices, n^2 parameters, takes 2 n^3 FLOPs
    return 2.0 * MUON_PRODUCTS * muon_side * parameters / rates.matmul_flops, memory


def on_host(job: TrainingJob) -> bool:
    """Whether the optimizer runs on the host: offloaded itself, or with FSDP2's parameters, since its CPUOffloadPolicy
    keeps gradients and states there ("the optimizer step runs on CPU": torch ``fsdp/_fully_shard/_fsdp_api.py``).
    """
    sharded = job.framework.data_parallel == "torch" and job.layout.zero_stage == 3
    return job.optimizer.offload != "none" or (sharded and job.parameter_offload != "none")


def offload_seconds(
    job: TrainingJob, parameters: float, shard_bytes: float, fetches: int, rates: Rates
) -> tuple[float, tuple[Assumption, ...]]:
    """Compute the seconds per step of offloading: transfers, and an optimizer on the host. Also returns assumptions.

    ``parameters``: trained parameters that this rank updates; ``shard_bytes``: bytes of this rank's shard of all
    parameters; ``fetches``: how often the shard is copied to the GPU in a step.
    """
    seconds, assumed = 0.0, []
    recipe = job.recipe
    if on_host(job):
        moved = parameters * (DTYPE_BYTES[recipe.gradients] + DTYPE_BYTES[recipe.params])
        seconds += moved / rates.host_bandwidth
        one_loop = job.framework.optimizers.own_kernels or job.optimizer.implementation == "fused"
        rate = HOST_ADAM_PER_SECOND if one_loop else HOST_ADAM_PER_SECOND / TORCH_SLOWER
        seconds += parameters * job.layout.gpus_per_node / rate
        why = "DeepSpeed's CPU-Adam on two sockets (Ren et al. 2021, table 4)"
        if not one_loop:
            why = f"torch's, operation by operation: {TORCH_SLOWER} times slower than {why}"
        assumed.append(Assumption("the optimizer on the host", f"{rate:.1e} parameters/s a node", why))
    if job.parameter_offload != "none":
        seconds += shard_bytes * fetches / rates.host_bandwidth
    nvme = 0.0
    if job.optimizer.offload == "nvme":
        nvme += 2.0 * parameters * 12
    if job.parameter_offload == "nvme":
        nvme += shard_bytes * fetches
    if nvme:
        seconds += nvme / (NVME_GBS * GB)
        assumed.append(Assumption("NVMe drives", f"{NVME_GBS} GB/s per GPU", "one PCIe 4 drive per GPU"))
    return seconds, tuple(assumed)
