"""Host memory per node for what is offloaded to it while the steps run.

DeepSpeed keeps fp32 master weights, gradients and Adam states of a rank's partition in pinned memory (ZeRO-Offload,
runtime/zero/stage_1_and_2.py and stage3.py); offloaded parameters rest there in their own dtype.
"""

from __future__ import annotations

from memcheck.architecture.parameters import count_parameters
from memcheck.architecture.types import Rough
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.memory.state import STATES_PER_PARAMETER


def host_states(job: TrainingJob) -> tuple[tuple[str, int], ...]:
    """Components and bytes that the ranks of one node keep in host memory.

    NVMe offload leaves only its buffers, counted as none.
    """
    layout, recipe = job.layout, job.recipe
    model = job.architecture
    total = model.parameters if isinstance(model, Rough) else count_parameters(model)
    copies = max(1, layout.data * layout.context)
    if layout.zero_stage >= 1:
        copies = max(1, layout.data * layout.context // layout.shard_group)
    per_node = total * copies * layout.gpus_per_node // layout.world_size
    states = per_node * STATES_PER_PARAMETER[job.optimizer.name] * DTYPE_BYTES[recipe.optimizer_states]
    found: list[tuple[str, int]] = []
    parameters = ("parameters", per_node * DTYPE_BYTES[recipe.params])
    if job.parameter_offload == "cpu" and job.framework not in ("deepspeed", "megatron"):
        # FSDP2's CPUOffloadPolicy takes gradients and states along, whether the plan names them or not
        found += [parameters, ("gradients", per_node * DTYPE_BYTES[recipe.gradients]), ("optimizer_states", states)]
    else:
        if job.optimizer.offload == "cpu":
            found += [("optimizer_states", states), ("master_weights", per_node * 4), ("gradients", per_node * 4)]
        if job.parameter_offload == "cpu":
            found.append(parameters)
    return tuple((name, count) for name, count in found if count)
