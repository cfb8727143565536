"""A job without what only decides how its steps run: what follows from the rest is kept for all such jobs."""

from __future__ import annotations

from memcheck.job.types import TrainingJob
from memcheck.job.unread import UNREAD


def host_key(job: TrainingJob) -> TrainingJob:
    """The job without what only decides how a step runs. Of its micro-batches it counts whether there are several."""
    return job._replace(
        micro_batch_size=UNREAD,
        sequence_length=UNREAD,
        gradient_accumulation_steps=min(job.gradient_accumulation_steps, 2),
        checkpointing=UNREAD,
        attention=UNREAD,
        loss=UNREAD,
        objective=UNREAD,
        torch=UNREAD,
    )


def state_key(job: TrainingJob) -> TrainingJob:
    """The :func:`host_key` job without what comes before and after its steps, either.

    States follow from the tensors, the dtypes, the optimizer and over how many ranks each kind is divided. The number
    of data-parallel ranks counts only as far as there are several.
    """
    layout = job.layout
    per_node = layout.gpus_per_node if job.optimizer.name == "muon" else UNREAD  # Newton-Schulz' choices
    return host_key(job)._replace(
        initialization=UNREAD,
        checkpoint=UNREAD,
        layout=layout._replace(nodes=UNREAD, gpus_per_node=per_node, data=min(layout.data, 2)),
    )
