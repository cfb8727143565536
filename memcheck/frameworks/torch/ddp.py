"""DistributedDataParallel: its buckets, and its hooks in a step.

Source: torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.accounts.program import Amount, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.data_parallel import DataParallel, MicroBatch, NamedUnit, StepUnits
from memcheck.frameworks.torch.fsdp import wraps
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.record import Record


class Buckets(Record):
    """How the lifetimes of gradients and their buckets overlap."""

    there: bool
    """DDP wraps the model."""
    views: bool
    """The buckets are the gradients, from the first micro-batch on."""
    views_late: bool
    """Whether the buckets become the gradients in the micro-batch that synchronises.

    no_sync disables DDP's hooks: the gradients are new tensors in addition to the buckets, until
    mark_variable_ready_dense copies each into its bucket and makes it a view.
    """


def buckets(job: TrainingJob) -> Buckets:
    """The buckets of a job, if it has any."""
    layout = job.layout
    there = (
        not wraps(job)
        and layout.data * layout.context > 1
        and job.framework.data_parallel == "torch"
        and layout.zero_stage in (0, 1)
    )
    views = there and layout.gradient_as_bucket_view
    late = views and layout.gradient_sync == "last" and job.gradient_accumulation_steps > 1
    return Buckets(there, views and not late, late)


class Replicated(Record):
    """How a step runs where every rank has all gradients: under DDP, or on one GPU."""

    views: bool
    """The buckets are the gradients, from the first micro-batch on."""
    views_late: bool
    """Whether the buckets become the gradients in the micro-batch that synchronises."""

    @property
    def sizes(self) -> int:
        """No sizes: the buckets are resident."""
        return 0

    def hooks(self, recorder: Recorder, row: StepUnits, first: int) -> ReplicatedHooks:
        """The hooks of one step."""
        return ReplicatedHooks(recorder, row, self)


class ReplicatedHooks(DataParallel):
    """DDP's hooks on gradients, which fill its buckets."""

    def __init__(self, recorder: Recorder, row: StepUnits, options: Replicated) -> None:
        super().__init__(recorder, row)
        self.options, self.last = options, False

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Gradients that are views of buckets are added to."""
        return unit.again if self.options.views else super().curve(unit, first)

    def drops_pending(self, earlier: bool) -> bool:
        """A bucket's view takes the sum, too."""
        return earlier or self.options.views

    def begin_backward(self, each: MicroBatch, *, all_at_once: bool) -> None:
        """The last micro-batch synchronises."""
        self.last = each.last

    def after_backward(self, i: int, end: int, curve: NamedCurve, gradients: Amount) -> None:
        """Where buckets become the gradients, those are no longer next to the buckets."""
        super().after_backward(i, end, curve, gradients)
        if self.last and self.options.views_late:
            self.recorder.release("communication_buffers", self.units[i].fresh.gradients)


def waiting(job: TrainingJob, kinds: Iterable[tuple[tuple[LocalTensor, ...], int]]) -> int:
    """Bytes of gradients that buckets have room for and that never come: those of what does not run (reducer.cpp,
    initialize_buckets).
    """
    found = [(t, count) for tensors, count in kinds for t in tensors if t.waits]
    return sum(count * t.numel * DTYPE_BYTES[t.dtype or job.recipe.gradients] for t, count in found)
