"""Host memory per node for what is offloaded to it.

DeepSpeed keeps fp32 master weights, gradients and Adam states of a rank's partition in pinned memory (ZeRO-Offload,
runtime/zero/stage_1_and_2.py and stage3.py); offloaded parameters rest there in their own dtype.
"""

from __future__ import annotations

from memcheck.architecture.parameters import count_parameters
from memcheck.architecture.types import Rough
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.memory.state import STATES_PER_PARAMETER


def host_bytes_per_node(job: TrainingJob) -> int:
    """Bytes that the ranks of one node keep in host memory. NVMe offload leaves only its buffers, counted as none."""
    layout, recipe = job.layout, job.recipe
    model = job.architecture
    total = model.parameters if isinstance(model, Rough) else count_parameters(model)
    copies = max(1, layout.data * layout.context)
    if layout.zero_stage >= 1:
        copies = max(1, layout.data * layout.context // layout.shard_group)
    per_node = total * copies * layout.gpus_per_node // layout.world_size
    n_bytes = 0
    if job.optimizer.offload == "cpu":
        states = STATES_PER_PARAMETER[job.optimizer.name] * DTYPE_BYTES[recipe.optimizer_states]
        n_bytes += per_node * (states + 4 + 4)  # fp32 master weights and fp32 gradients beside the states
    if job.parameter_offload == "cpu":
        n_bytes += per_node * DTYPE_BYTES[recipe.params]
        if job.framework not in ("deepspeed", "megatron") and job.optimizer.offload == "none":
            # FSDP2's CPUOffloadPolicy takes gradients and states along
            states = STATES_PER_PARAMETER[job.optimizer.name] * DTYPE_BYTES[recipe.optimizer_states]
            n_bytes += per_node * (states + DTYPE_BYTES[recipe.gradients])
    return n_bytes
