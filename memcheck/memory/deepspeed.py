"""What the DeepSpeed engine allocates beside parameters, gradients and states.

Sources: deepspeed/runtime/zero/config.py (defaults), stage_1_and_2.py (``ipg_buffer``, ``single_grad_partition``),
stage3.py (``__ipg_bucket_flat_buffer``, sub-groups), partitioned_param_coordinator.py (live parameters);
transformers/integrations/deepspeed.py for the ``"auto"`` values. Bucket sizes are elements, not bytes.
"""

from __future__ import annotations

from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.memory.tape.tensor import rounded
from memcheck.record import Record

DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "allgather_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
}


class EngineBuffers(Record):
    """Bytes on one rank."""

    buckets: int
    """Gradient buckets that live from the first backward on."""
    live_parameters: int
    """ZeRO-3: gathered parameters during forward and backward."""
    step_temporaries: int
    """fp32 copies of gradients while the optimizer runs, or the flat all-reduce bucket without ZeRO."""


def elements(job: TrainingJob, name: str, hidden: int) -> int:
    """One size option in elements; ``auto`` is what transformers fills in."""
    value = job.option(name, DEFAULTS[name])
    if value == "auto":
        value = {"reduce_bucket_size": hidden * hidden, "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden)}.get(
            name, DEFAULTS[name]
        )
    return int(str(value)) if not isinstance(value, (int, float)) else int(value)


def engine_buffers(job: TrainingJob, trained: int, total: int, hidden: int) -> EngineBuffers:
    """``trained`` and ``total``: parameters of this rank before ZeRO divides them."""
    item = DTYPE_BYTES[job.recipe.compute]
    stage, ways = job.layout.zero_stage, max(1, job.layout.shard_group)
    offloaded = job.optimizer.offload != "none"
    bucket = elements(job, "reduce_bucket_size", hidden)
    if stage == 0:
        flat = rounded(min(bucket, trained) * item) if job.layout.data * job.layout.context > 1 else 0
        return EngineBuffers(0, 0, flat)
    buffers = 0
    if job.option("contiguous_gradients", True):
        buffers = 2 if job.option("overlap_comm", stage == 3) and stage < 3 else 1
    buckets = buffers * rounded(bucket * item)
    partition = -(-trained // ways)
    if stage == 3:
        live = elements(job, "stage3_max_live_parameters", hidden) + elements(
            job, "stage3_prefetch_bucket_size", hidden
        )
        group = min(elements(job, "sub_group_size", hidden), partition)
        return EngineBuffers(buckets, rounded(min(total, live) * item), 0 if offloaded else rounded(group * 4))
    return EngineBuffers(buckets, 0, 0 if offloaded else rounded(partition * 4))
